from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    """Pinned, archived and deleted conversations, and what came with those that were imported."""

    dependencies = [
        ("conversations", "0007_search"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField("conversation", "pinned", models.BooleanField(db_default=False)),
        migrations.AddField("conversation", "archived", models.BooleanField(db_default=False)),
        migrations.AddField("conversation", "deleted_at", models.DateTimeField(blank=True, null=True)),
        migrations.AddField("conversation", "imported", models.JSONField(blank=True, null=True)),
        migrations.AddField("conversation", "import_digest", models.BinaryField(blank=True, null=True)),
        migrations.AddField("message", "imported", models.JSONField(blank=True, null=True)),
        migrations.AddField("message", "notes", models.JSONField(blank=True, null=True)),
        migrations.AddField("generation", "imported", models.BooleanField(db_default=False)),
        migrations.AddIndex(
            "conversation",
            models.Index(name="conversation_listed", fields=["owner", "archived", "-pinned", "-updated_at", "-id"]),
        ),
        migrations.AddIndex(
            "conversation",
            models.Index(
                name="conversation_deleted",
                fields=["deleted_at"],
                condition=models.Q(("deleted_at__isnull", False)),
            ),
        ),
        migrations.AddIndex(
            "conversation",
            models.Index(
                name="conversation_imported",
                fields=["owner", "import_digest"],
                condition=models.Q(("import_digest__isnull", False)),
            ),
        ),
    ]
