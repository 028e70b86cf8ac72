"""``manage.py syncguard_guard --forget KEY``: for use after the server lost its fence counters."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from syncguard import LockError
from syncguard_django import fencing
from syncguard_django.configured_backends import locks
from syncguard_django.settings import DEFAULT_ALIAS


class Command(BaseCommand):
    help = (
        "Forgets the highest fence that the fence guard has seen for a key. Needed once for a key"
        " after the lock server lost its fence counters: then every new holder has a lower fence."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--forget", metavar="KEY", required=True, help="the key of the lock")
        parser.add_argument("--using", default=DEFAULT_ALIAS, help="the alias of the lock")
        parser.add_argument("--database", default=None, help="the database that the guard protects")
        parser.add_argument(
            "--no-input", "--noinput", action="store_false", dest="interactive", help="do not ask"
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        key, using, database = options["forget"], options["using"], options["database"]
        try:
            name = f"key {locks[using].hash(key)} of alias {using}"
            fencing.key_digest(key, using)
            if options["interactive"] and not self._agreed(name):
                self.stdout.write("Nothing was changed.")
                return
            known = fencing.forget(key, using=using, database=database)
        except LockError as error:
            raise CommandError(f"{error.code}: {error}") from None
        if known:
            self.stdout.write(f"Forgot the fence of {name}.")
        else:
            self.stdout.write(f"The guard has recorded no fence of {name}.")

    def _agreed(self, name: str) -> bool:
        self.stdout.write(
            f"The guard will accept any fence for {name}, also the fence of a holder that lost its"
            " lock long ago.\nMake sure that no such holder still runs."
        )
        return input("Forget it? [y/N] ").strip().lower() in ("y", "yes")
