"""A site whose database driver is psycopg2, with psycopg 3 beside it for the locks.

``psycopg2_site.py LEVEL`` prints what ``protect`` does for a holder, and for a late one. Django
prefers psycopg 3, so it is hidden while Django chooses.
"""

# ruff: noqa: E402, T201 - a program that prints; the order of its imports decides
from __future__ import annotations

import os
import sys

sys.modules["psycopg"] = None  # type: ignore[assignment]

from django.db.backends.postgresql import base  # noqa: F401 - chooses the driver
from django.db.backends.postgresql.psycopg_any import is_psycopg3

del sys.modules["psycopg"]

from stopped_holder import configure


def main(level):
    configure(level)
    from django.db import connection, transaction

    from syncguard import LockError
    from syncguard_django import lock, locks
    from syncguard_django.fencing import StaleFence, protect

    def take_over(key):
        info = locks["default"].lookup(key=key)
        seen = {"fence": info.fence, "lock_id_hash": info.lock_id_hash}
        assert locks["default"].force_release(info.key_hash, **seen).ok
        assert locks["default"].acquire(key, 60_000).ok

    connection.ensure_connection()
    print("driver", type(connection.connection).__module__.partition(".")[0], is_psycopg3)
    key = f"psycopg2-{level}-{os.getpid()}"
    with lock(key) as held, transaction.atomic():
        protect(held)
        with connection.cursor() as cursor:
            cursor.execute("SHOW transaction_isolation")
            print("protected at", *cursor.fetchone())
    try:
        with lock(key) as held, transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1 FROM testsite_account")
            take_over(key)
            protect(held)
    except StaleFence:
        print("StaleFence")
    except LockError as error:
        print(error)


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore")
    main(sys.argv[1])
