from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []  # noqa: RUF012 - Django's own shape

    operations = [  # noqa: RUF012
        migrations.CreateModel(
            name="Lock",
            fields=[
                ("id", models.CharField(max_length=255, primary_key=True, serialize=False)),
                ("using", models.CharField(max_length=255, verbose_name="alias")),
                ("key_hash", models.CharField(max_length=24)),
                ("lock_id_hash", models.CharField(max_length=24, verbose_name="lock-id hash")),
                ("holder", models.CharField(blank=True, max_length=256)),
                ("fence", models.CharField(max_length=15)),
                ("acquired_at_ms", models.BigIntegerField()),
                ("expires_at_ms", models.BigIntegerField()),
            ],
            options={
                "permissions": (("release_lock", "Can force-release lock"),),
                "managed": False,
                "default_permissions": ("view",),
                "base_manager_name": "objects",
            },
        ),
        migrations.CreateModel(
            name="FenceMark",
            fields=[
                ("key_digest", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("fence", models.CharField(max_length=15)),
                ("seen_at", models.DateTimeField()),
            ],
            options={"default_permissions": ()},
        ),
    ]
