"""The Django application: its names, checks and signal receivers. Opens no connection."""

from __future__ import annotations

from typing import Final

from django.apps import AppConfig
from django.core import checks
from django.core.signals import setting_changed
from django.db.backends.base.base import NO_DB_ALIAS, BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate

from syncguard_django.checks import TAG, check_deployment, check_settings
from syncguard_django.configured_backends import locks
from syncguard_django.open_transactions import record_queries
from syncguard_django.settings import SETTING, hide_passwords

_DEPENDS_ON: Final = (SETTING, "CACHES", "DATABASES", "SECRET_KEY", "SECRET_KEY_FALLBACKS")
"""The settings that the configuration of SyncGuard depends on."""


class SyncGuardConfig(AppConfig):
    name = "syncguard_django"
    label = "syncguard_django"
    verbose_name = "SyncGuard"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # Imports models, which Django allows only from here on.
        from syncguard_django.fencing.fence_checks import check_fenced_models
        from syncguard_django.store_setup import check_tables, set_up_after_migrate

        hide_passwords()
        checks.register(check_settings, TAG)
        checks.register(check_deployment, TAG, deploy=True)
        checks.register(check_fenced_models, TAG)
        checks.register(check_tables, checks.Tags.database)
        post_migrate.connect(set_up_after_migrate, sender=self, dispatch_uid="syncguard_django")
        setting_changed.connect(_reload, dispatch_uid="syncguard_django")
        connection_created.connect(_record_queries, dispatch_uid="syncguard_django")
        connection_created.connect(_close_backends, dispatch_uid="syncguard_django.close")


def _reload(*, setting: str, **_kwargs: object) -> None:
    if setting in _DEPENDS_ON:
        hide_passwords()
        locks.reset()


def _record_queries(*, connection: BaseDatabaseWrapper, **_kwargs: object) -> None:
    record_queries(connection)


def _close_backends(*, connection: BaseDatabaseWrapper, **_kwargs: object) -> None:
    # Django uses this alias to create, copy and drop test databases. PostgreSQL refuses to copy or
    # drop a database that somebody is connected to, and the locks may be in it.
    if connection.alias == NO_DB_ALIAS:
        locks.reset()
