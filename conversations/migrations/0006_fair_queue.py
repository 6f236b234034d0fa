"""People take turns; how long they wait is estimated, and how far off that was is kept."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

# Who was running before goes first. The others by their share: what their person has running, and has waiting before
# it. Of two with the same share the one comes first whose person has not even one waiting before it, then the one whose
# person was served longer ago, or never.
QUEUE = """
DROP VIEW conversations_queue;
CREATE VIEW conversations_queue AS
WITH running AS (
  SELECT owner_id, count(*)::integer AS running FROM conversations_generation WHERE status = 'running' GROUP BY owner_id),
waiting AS (
  SELECT g.id, g.conversation_id, g.owner_id, g.model, g.queued_at, p.served_at,
         g.started_at IS NOT NULL AS began, g.estimated_at IS NULL AS untold, coalesce(r.running, 0) AS running,
         row_number() OVER (
           PARTITION BY g.owner_id ORDER BY g.started_at IS NOT NULL DESC, g.queued_at, g.id)::integer AS own
  FROM conversations_generation g
  LEFT JOIN running r ON r.owner_id = g.owner_id
  LEFT JOIN conversations_person p ON p.user_id = g.owner_id
  WHERE g.status = 'queued'),
ordered AS (
  SELECT w.*, running + own AS share, row_number() OVER (
    ORDER BY began DESC, running + own, own, served_at NULLS FIRST, queued_at, id)::integer AS position
  FROM waiting w)
SELECT id, conversation_id, owner_id, model, began, untold, running, share, position,
       CASE WHEN model = '' THEN position
            ELSE (row_number() OVER (PARTITION BY model ORDER BY position)
                  + count(*) FILTER (WHERE model = '') OVER (ORDER BY position))::integer END AS place
FROM ordered
"""

FIRST_COME = """
DROP VIEW conversations_queue;
CREATE VIEW conversations_queue AS
SELECT g.id, g.conversation_id, g.owner_id, g.model,
       row_number() OVER (ORDER BY g.attempt > 0 DESC, g.queued_at, g.id)::integer AS place
FROM conversations_generation g
WHERE g.status = 'queued'
"""


class Migration(migrations.Migration):
    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("conversations", "0005_html"),
    ]

    operations = [
        migrations.CreateModel(
            name="Person",
            fields=[
                (
                    "user",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="+",
                        serialize=False,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("served_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={"default_permissions": (), "verbose_name_plural": "people"},
        ),
        migrations.CreateModel(
            name="Telling",
            fields=[
                ("id", models.PositiveSmallIntegerField(primary_key=True, serialize=False)),
                ("worker", models.UUIDField()),
                ("until", models.DateTimeField()),
            ],
            options={"default_permissions": ()},
        ),
        migrations.AddField("generation", "estimated_at", models.DateTimeField(blank=True, null=True)),
        migrations.AddField("generation", "estimate_low", models.PositiveIntegerField(blank=True, null=True)),
        migrations.AddField("generation", "estimate_high", models.PositiveIntegerField(blank=True, null=True)),
        migrations.RunSQL(QUEUE, FIRST_COME),
    ]
