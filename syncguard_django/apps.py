"""The Django application: its names, checks and signal receivers. Opens no connection."""

from __future__ import annotations

from typing import Final

from django.apps import AppConfig
from django.core import checks
from django.core.signals import setting_changed
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from syncguard_django.checks import TAG, check_deployment, check_settings
from syncguard_django.configured_backends import locks
from syncguard_django.open_transactions import record_queries
from syncguard_django.settings import SETTING, hide_passwords

_DEPENDS_ON: Final = (SETTING, "CACHES", "SECRET_KEY", "SECRET_KEY_FALLBACKS")
"""The settings that the configuration of SyncGuard depends on."""


class SyncGuardConfig(AppConfig):
    name = "syncguard_django"
    label = "syncguard_django"
    verbose_name = "SyncGuard"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # Imports models, which Django allows only from here on.
        from syncguard_django.fencing.fence_checks import check_fenced_models

        hide_passwords()
        checks.register(check_settings, TAG)
        checks.register(check_deployment, TAG, deploy=True)
        checks.register(check_fenced_models, TAG)
        setting_changed.connect(_reload, dispatch_uid="syncguard_django")
        connection_created.connect(_record_queries, dispatch_uid="syncguard_django")


def _reload(*, setting: str, **_kwargs: object) -> None:
    if setting in _DEPENDS_ON:
        hide_passwords()
        locks.reset()


def _record_queries(*, connection: BaseDatabaseWrapper, **_kwargs: object) -> None:
    record_queries(connection)
