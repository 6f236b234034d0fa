from django.db import migrations, models


class Migration(migrations.Migration):
    """Answers as HTML, stored with the answer."""

    dependencies = [
        ("conversations", "0004_admin_permissions"),
    ]

    operations = [
        migrations.AddField(
            model_name="message",
            name="html",
            field=models.JSONField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="message",
            name="html_version",
            field=models.PositiveSmallIntegerField(db_default=0),
        ),
    ]
