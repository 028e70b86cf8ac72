"""``manage.py syncguard_setup``: creates the tables of backends that store locks in a database."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from syncguard import LockError
from syncguard_django.management.lock_command import LockCommand, aliases, no_answer
from syncguard_django.store_setup import store_of


class Command(LockCommand):
    help = (
        "Creates the tables of backends that store locks in a database. Changes nothing if they"
        " exist. manage.py migrate does the same for aliases with a DATABASE."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--using", default=None, help="the alias; all if it is not given")
        parser.add_argument(
            "--dry-run", action="store_true", help="print the SQL, and execute nothing"
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        for alias in aliases(options["using"]):
            store = store_of(alias)
            if options["dry_run"]:
                self.stdout.write(f"-- {alias}")
                self.stdout.write("-- nothing to set up" if store is None else store.setup_sql)
            elif store is None:
                self.stdout.write(f"{alias}: nothing to set up")
            else:
                try:
                    store.setup()
                except LockError as error:
                    raise no_answer(f"{alias}: {error.code}: {error}") from None
                self.stdout.write(f"{alias}: tables are ready")
