"""Prepares the stores of backends that need it: after ``migrate``, and by ``syncguard_setup``.

``migrate`` prepares the aliases whose ``DATABASE`` it migrates. It does so after each run and not
by a migration of its own, so that a project can change its backend by one setting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from django.core.checks import CheckMessage, Warning
from django.db import DatabaseError, connections
from django.db.migrations.recorder import MigrationRecorder

from syncguard import AuthFailed, LockError
from syncguard.backend import NeedsSetup, offers
from syncguard_django.configured_backends import locks
from syncguard_django.settings import SETTING, configuration


def store_of(alias: str) -> NeedsSetup | None:
    """The backend of an alias, if its store has to be prepared."""
    backend: object = locks.inspector(alias)
    return cast("NeedsSetup", backend) if offers(backend, NeedsSetup) else None


def set_up_after_migrate(
    *, using: str, verbosity: int = 0, stdout: Any = None, **given: Any
) -> None:
    """Receives ``post_migrate``. ``flush`` sends it too, without a plan; nothing is to do then."""
    if "plan" not in given:
        return
    for alias, store in _stores_in((using,)):
        told, least = "Prepared", 2
        try:
            store.setup()
        except AuthFailed:
            # CREATE TABLE IF NOT EXISTS needs the permission also if the table exists.
            if not _is_set_up(store):
                raise
            told, least = "This role may not update", 1
        if verbosity >= least and stdout is not None:
            stdout.write(f'  {told} the tables of {SETTING}["{alias}"]\n')


def check_tables(*, databases: Sequence[str] | None = None, **_kwargs: Any) -> list[CheckMessage]:
    """For ``manage.py check --database default``: do the tables exist?

    Silent before the first ``migrate``, which runs the checks too and then creates the tables.
    """
    return [
        Warning(
            f'{SETTING}["{alias}"] has no tables in its database, or cannot reach it.',
            hint=f"Run manage.py migrate, or manage.py syncguard_setup --using {alias}.",
            id="syncguard.W007",
        )
        for alias, store in _stores_in(databases or ())
        if _is_migrated(configuration().of(alias).database) and not _is_set_up(store)
    ]


def _stores_in(databases: Sequence[str]) -> Iterator[tuple[str, NeedsSetup]]:
    for alias, settings in configuration().aliases.items():
        store = store_of(alias) if settings.database in databases else None
        if store is not None:
            yield alias, store


def _is_migrated(database: str | None) -> bool:
    try:
        applied = MigrationRecorder(connections[database or ""]).applied_migrations()
    except DatabaseError:
        return True  # it is down, most likely: then the tables cannot be read, and the check warns
    return any(app == "syncguard_django" for app, _ in applied)


def _is_set_up(store: NeedsSetup) -> bool:
    try:
        return store.is_set_up()
    except LockError:
        return False
