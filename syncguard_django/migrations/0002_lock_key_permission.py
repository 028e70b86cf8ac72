from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("syncguard_django", "0001_initial")]  # noqa: RUF012 - Django's own shape

    operations = [  # noqa: RUF012
        migrations.AlterModelOptions(
            name="lock",
            options={
                "base_manager_name": "objects",
                "default_permissions": ("view",),
                "managed": False,
                "permissions": (
                    ("release_lock", "Can force-release lock"),
                    ("view_lock_key", "Can view the raw keys of locks"),
                ),
                "verbose_name": "lock",
                "verbose_name_plural": "locks",
            },
        ),
    ]
