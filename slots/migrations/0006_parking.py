"""Files that caches are parked in, and what is known of parking on each server."""

import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

# Processes that were tried before anything was known of their files are tried once more; one that drains, when it is
# back in service.
PROBE_AGAIN = (
    "UPDATE slots_server SET state = CASE state WHEN 'ready' THEN 'probing' ELSE state END, grade = '', probes = 0 "
    "WHERE state IN ('ready', 'draining') AND grade = 'full'"
)


class Migration(migrations.Migration):
    dependencies = [
        ("slots", "0005_switches"),
    ]

    operations = [
        migrations.AddField(
            model_name="server",
            name="fingerprint",
            field=models.TextField(blank=True, default=""),
        ),
        migrations.AddField(
            model_name="server",
            name="parking",
            field=models.TextField(
                choices=[
                    ("unknown", "Unknown"),
                    ("effective", "Effective"),
                    ("ineffective", "Ineffective"),
                    ("off", "Off"),
                ],
                default="unknown",
            ),
        ),
        migrations.AddField(
            model_name="server",
            name="parking_proved",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.BooleanField(), blank=True, default=list, size=None
            ),
        ),
        migrations.AddField(
            model_name="server",
            name="restore_ms",
            field=models.FloatField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="server",
            name="save_ms",
            field=models.FloatField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="server",
            name="token_bytes",
            field=models.FloatField(blank=True, null=True),
        ),
        migrations.CreateModel(
            name="Park",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.PositiveSmallIntegerField()),
                ("name", models.TextField()),
                (
                    "state",
                    models.TextField(
                        choices=[
                            ("empty", "Empty"),
                            ("writing", "Being written"),
                            ("ready", "Ready"),
                            ("stale", "To be overwritten"),
                        ],
                        db_default="empty",
                    ),
                ),
                ("holder", models.UUIDField(blank=True, null=True)),
                ("fence", models.BigIntegerField(blank=True, null=True)),
                ("reader", models.BigIntegerField(blank=True, null=True)),
                ("tokens", models.IntegerField(blank=True, null=True)),
                ("bytes", models.BigIntegerField(blank=True, null=True)),
                ("outline", models.JSONField(blank=True, null=True)),
                ("fingerprint", models.TextField(blank=True, db_default="")),
                ("saved_at", models.DateTimeField(blank=True, null=True)),
                ("used_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("due_at", models.DateTimeField(blank=True, null=True)),
                (
                    "server",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.RESTRICT, related_name="parks", to="slots.server"
                    ),
                ),
            ],
            options={
                "verbose_name": "parked file",
                "default_permissions": ("view",),
                "constraints": [
                    models.UniqueConstraint(fields=("server", "number"), name="park_once"),
                    models.UniqueConstraint(
                        condition=models.Q(("state__in", ["writing", "ready"])),
                        fields=("server", "holder"),
                        name="park_one_per_holder",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("due_at__isnull", True),
                                ("holder__isnull", True),
                                ("state", "empty"),
                                ("tokens__isnull", True),
                            ),
                            models.Q(
                                ("due_at__isnull", True),
                                ("fence__isnull", False),
                                ("holder__isnull", False),
                                ("state", "writing"),
                                ("tokens__isnull", True),
                            ),
                            models.Q(
                                ("due_at__isnull", True),
                                ("holder__isnull", False),
                                ("saved_at__isnull", False),
                                ("state", "ready"),
                                ("tokens__gt", 0),
                            ),
                            models.Q(
                                ("due_at__isnull", False),
                                ("holder__isnull", True),
                                ("state", "stale"),
                                ("tokens__isnull", True),
                            ),
                            _connector="OR",
                        ),
                        name="park_shape",
                    ),
                ],
            },
        ),
        migrations.RunSQL(PROBE_AGAIN, migrations.RunSQL.noop),
    ]
