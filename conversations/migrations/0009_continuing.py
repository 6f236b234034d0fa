from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("conversations", "0008_keeping_order")]

    operations = [
        migrations.AlterField(
            model_name="generation",
            name="kind",
            field=models.TextField(choices=[("send", "Send"), ("regenerate", "Regenerate"), ("continue", "Continue")]),
        ),
    ]
