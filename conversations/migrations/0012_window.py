from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("conversations", "0011_titles")]

    operations = [
        migrations.AddField(
            model_name="message",
            name="window_start",
            field=models.UUIDField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="message",
            name="window_context",
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
    ]
