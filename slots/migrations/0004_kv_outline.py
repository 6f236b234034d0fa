"""What a slot's holder noted of its cache, for its next turn."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("slots", "0003_grades"),
    ]

    operations = [
        migrations.AddField(
            model_name="slot",
            name="kv_outline",
            field=models.JSONField(blank=True, null=True),
        ),
        migrations.AddConstraint(
            model_name="slot",
            constraint=models.CheckConstraint(
                condition=models.Q(("kv_tokens__isnull", False), ("kv_outline__isnull", True), _connector="OR"),
                name="slot_outline_shape",
            ),
        ),
    ]
