"""Text as search compares it: no accents, no capitals, no compatibility forms."""

from django.contrib.postgres.operations import UnaccentExtension
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

# unaccent() may be given other rules later and so is not immutable; ours keeps to the rules it is installed with.
# What NFKD takes apart goes first: unaccent knows composed characters, and those that cannot be (ø, ß, ł).
FOLD = r"""
CREATE FUNCTION conversations_fold(said text) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN lower({schema}.unaccent('{schema}.unaccent', regexp_replace(normalize(said, NFKD), '[\u0300-\u036f]', '', 'g')));
ALTER TABLE conversations_message ADD COLUMN folded text GENERATED ALWAYS AS (conversations_fold(text)) STORED;
"""

UNFOLD = """
ALTER TABLE conversations_message DROP COLUMN folded;
DROP FUNCTION conversations_fold(text);
"""


def fold(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    with schema_editor.connection.cursor() as cursor:
        cursor.execute("SELECT extnamespace::regnamespace::text FROM pg_extension WHERE extname = 'unaccent'")
        (schema,) = cursor.fetchone()
    schema_editor.execute(FOLD.format(schema=schema))


class Migration(migrations.Migration):
    dependencies = [("conversations", "0006_fair_queue")]

    operations = [
        UnaccentExtension(),
        migrations.RunPython(fold, lambda apps, schema_editor: schema_editor.execute(UNFOLD)),
    ]
