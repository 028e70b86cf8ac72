"""A holder that stops itself inside its transaction: ``stopped_holder.py LEVEL before|after``.

For each line of its input it acquires a lock with a short TTL, begins a transaction, and stops with
SIGSTOP before or after ``protect``. When it continues, it writes, commits and prints the result.
"""

from __future__ import annotations

import ast
import os
import signal
import sys

import django
from django.conf import settings

TTL_MS = 300


def configure(level):
    from django.db.backends.postgresql.psycopg_any import IsolationLevel
    from testsite import settings as plain

    chosen = {name: getattr(plain, name) for name in dir(plain) if name.isupper()}
    chosen["DATABASES"] = {
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "USER": os.environ["HOLDER_USER"],
            "OPTIONS": {"isolation_level": IsolationLevel[level.replace(" ", "_").upper()]},
            **ast.literal_eval(os.environ["HOLDER_DATABASE"]),
        }
    }
    chosen["SYNCGUARD"] = {
        "default": {
            "BACKEND": "syncguard.postgres.PostgresBackend",
            "DATABASE": "default",
            "KEY_PREFIX": "testsite",
        }
    }
    settings.configure(**chosen)
    django.setup()


def play(place):
    from django.db import transaction
    from testsite.models import Account

    from syncguard import LockLost
    from syncguard_django import lock
    from syncguard_django.fencing import StaleFence, protect

    try:
        with lock("stopped", TTL_MS) as held, transaction.atomic():
            if place == "before":
                os.kill(os.getpid(), signal.SIGSTOP)
            protect(held)
            if place == "after":
                os.kill(os.getpid(), signal.SIGSTOP)
            owner = f"first {held.fence}"
            Account.objects.filter(pk=1).update(owner=owner)
    except StaleFence:
        return "StaleFence"
    except LockLost:  # told on leaving; the transaction is committed
        pass
    return f"wrote {owner}"


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore")
    configure(sys.argv[1])
    for _ in sys.stdin:
        print(play(sys.argv[2]), flush=True)  # noqa: T201
