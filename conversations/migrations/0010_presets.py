"""Presets, and what each answer was asked for with."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models
from django.db.models.functions import Now

from conversations.models import new_id


class Migration(migrations.Migration):
    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("conversations", "0009_continuing"),
    ]

    operations = [
        migrations.AddField("generation", "params", models.JSONField(blank=True, null=True)),
        migrations.AddField("generation", "system_prompt", models.TextField(blank=True, null=True)),
        migrations.CreateModel(
            name="Preset",
            fields=[
                ("id", models.UUIDField(default=new_id, primary_key=True, serialize=False)),
                ("name", models.TextField()),
                ("model", models.TextField(blank=True, default="")),
                ("system_prompt", models.TextField(blank=True, default="")),
                ("params", models.JSONField(blank=True, default=dict)),
                ("for_everybody", models.BooleanField(default=False)),
                ("created_at", models.DateTimeField(db_default=Now())),
                ("updated_at", models.DateTimeField(db_default=Now())),
                (
                    "owner",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="presets",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={"default_permissions": ("change",)},
        ),
        migrations.AddConstraint("preset", models.UniqueConstraint(fields=("owner", "name"), name="preset_name_once")),
    ]
