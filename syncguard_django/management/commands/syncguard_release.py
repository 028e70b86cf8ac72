"""``manage.py syncguard_release``: release the lock of a holder that no longer runs.

By its raw key, or by the hash that pages, commands and logs show. Shows the holder, asks for
confirmation, and writes the same audit as the admin page. The exit code is 0 if it released the
lock, 1 if nothing was released, and 2 after an error.
"""

from __future__ import annotations

import getpass
import re
import socket
import sys
from argparse import ArgumentParser
from functools import partial
from typing import Any, Final, NoReturn

from django.contrib.auth import get_user_model
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError

from syncguard_django import force_release, live_locks, status_output
from syncguard_django.live_locks import Failure, Holder
from syncguard_django.management.lock_command import NO, LockCommand, aliases, no_answer

_HASH: Final = re.compile(r"[0-9a-f]{8,24}")


class Command(LockCommand):
    help = (
        "Releases the lock of a key, for any holder. This does not stop the holder: unless its"
        " writes are fenced, first make sure that it no longer runs."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument(
            "hash", metavar="HASH", nargs="?", help="the key's hash, or its first 8 digits or more"
        )
        which.add_argument("--key", metavar="RAW_KEY", help="the key of the lock")
        parser.add_argument("--using", metavar="ALIAS", help="only this alias; default: all")
        parser.add_argument("--user", metavar="USERNAME", help="your account, for the admin's log")
        parser.add_argument(
            "--no-input", "--noinput", action="store_false", dest="interactive", help="do not ask"
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        actor = _actor(options["user"])
        holder = self._found(options)
        if holder is None:
            self._end("Not locked: nothing to release.")
        self.stdout.write("\n".join(status_output.facts(holder.lock)))
        if options["interactive"] and not self._agreed():
            self._end("Nothing was released.")
        outcome = force_release.release(holder, actor)
        if isinstance(outcome, Failure):
            raise no_answer(
                f"{outcome}. The lock may have been released; check with syncguard_status."
            )
        if not outcome:
            self._end("Nothing was released: that holder no longer holds the lock.")
        self.stdout.write(self.style.SUCCESS("Released."))
        if not actor.is_in_the_admins_log:
            self.stderr.write("The admin's log has no entry for this: pass an account with --user.")

    def _found(self, options: dict[str, Any]) -> Holder | None:
        found: list[Holder] = []
        for using in aliases(options["using"]):
            answer = live_locks.attempt(using, partial(_holders, using, options))
            if isinstance(answer, Failure):
                raise no_answer(str(answer))
            found += answer
        if len(found) > 1:
            shown = status_output.table([holder.lock for holder in found], with_alias=True)
            text = "\n".join(shown)
            raise no_answer(f"{text}\nSeveral locks match: pass --using, or more of the hash.")
        return found[0] if found else None

    def _agreed(self) -> bool:
        self.stdout.write(
            "The lock will be free immediately. This does not stop the holder: make sure that it no"
            " longer runs."
        )
        try:
            return input("Release it? [y/N] ").strip().lower() in ("y", "yes")
        except EOFError:
            return False

    def _end(self, text: str) -> NoReturn:
        self.stdout.write(text)
        sys.exit(NO)


def _holders(using: str, options: dict[str, Any]) -> list[Holder]:
    if options["key"] is not None:
        holder = live_locks.lookup(using, key=options["key"])
        return [] if holder is None else [holder]
    beginning = options["hash"].strip().lower()
    if not _HASH.fullmatch(beginning):
        raise no_answer("a hash has 24 digits, 0-9 and a-f; pass at least the first 8")
    return live_locks.find_by_hash(using, beginning, at_most=10)


def _actor(username: str | None) -> force_release.Actor:
    """The login that runs the command, and an account of this site: the given one, or the one with
    the same name."""
    try:
        login = getpass.getuser()
    except (OSError, KeyError):  # a container whose user has no name
        login = "unknown"
    name = f"{login}@{socket.gethostname()}"
    try:
        accounts = get_user_model()._default_manager
        account = {get_user_model().USERNAME_FIELD: username or login}
        pk = accounts.filter(**account).values_list("pk", flat=True).first()
    except (ImproperlyConfigured, DatabaseError):  # no user model, or no database
        pk = None
    if username is not None and pk is None:
        raise no_answer(
            "there is no such account: --user is an account of this site, for the admin's log"
        )
    return force_release.Actor(name if username is None else f"{username} ({name})", pk)
