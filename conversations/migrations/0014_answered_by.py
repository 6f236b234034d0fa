from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("conversations", "0012_window")]

    operations = [
        migrations.AddField(
            model_name="generation",
            name="answered_by",
            field=models.TextField(blank=True, db_default=""),
        ),
    ]
