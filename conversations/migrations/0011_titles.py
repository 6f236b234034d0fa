"""Titles that a model makes: where one is due, and servers on which none is made."""

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import Q
from django.db.models.functions import Now


class Migration(migrations.Migration):
    dependencies = [
        ("slots", "0007_kinds_of_work"),
        ("conversations", "0010_presets"),
    ]

    operations = [
        migrations.AddField("conversation", "title_due", models.BooleanField(db_default=False)),
        migrations.AddIndex(
            "conversation", models.Index(name="conversation_title_due", fields=["id"], condition=Q(title_due=True))
        ),
        migrations.CreateModel(
            name="Forgetful",
            fields=[
                (
                    "server",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="+",
                        serialize=False,
                        to="slots.server",
                    ),
                ),
                ("at", models.DateTimeField(db_default=Now())),
            ],
            options={"default_permissions": ()},
        ),
    ]
