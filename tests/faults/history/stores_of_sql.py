"""The stores of the backends that need no Redis: PostgreSQL, SQLite, the memory of a process."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from postgres_standby import PostgresStandby

from history.faulty_relay import FaultyRelay
from syncguard.backend import LockBackend, listing_of
from syncguard.postgres import PostgresBackend, Tables
from syncguard.sqlite import SQLiteBackend
from syncguard.testing import PostgresServer

if TYPE_CHECKING:
    from typing_extensions import Self

_LONGEST_MS: Final = 60_000
"""Far above every TTL of a worker."""


class PostgresStore:
    """A server with the tables of SyncGuard."""

    max_processes = 8
    table = Tables().locks

    def __init__(self) -> None:
        self.server = PostgresServer(fsync=True)

    def __enter__(self) -> Self:
        self.server.start()
        with PostgresBackend.from_url(self.server.url) as backend:
            backend.setup()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.server.stop()

    @property
    def address(self) -> str:
        return self.server.url

    def unlimited(self) -> list[str]:
        with PostgresBackend.from_url(self.server.url) as backend:
            return long_lived(backend)


class PostgresBehindRelay(PostgresStore):
    """The same, and a relay between the server and the workers."""

    relay: FaultyRelay

    def __enter__(self) -> Self:
        super().__enter__()
        self.relay = FaultyRelay(self.server.port)
        self.relay.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self.relay.close()
        super().__exit__(*exc)

    @property
    def address(self) -> str:
        return self.server.url.replace(f":{self.server.port}/", f":{self.relay.port}/")


class PostgresWithStandby(PostgresStore):
    """A primary and a hot standby. ``is_synchronous``: a commit waits until the standby has it."""

    standby: PostgresStandby

    def __init__(self, *, is_synchronous: bool, fence_floor: str | None = None) -> None:
        super().__init__()
        self._is_synchronous = is_synchronous
        self._fence_floor = fence_floor

    def __enter__(self) -> Self:
        super().__enter__()
        self.standby = PostgresStandby(self.server, fsync=True)
        try:
            self.standby.start()
            if self._is_synchronous:
                self.standby.make_synchronous()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.standby.stop()
        super().__exit__(*exc)

    def fail_over(self, pause_s: float) -> None:
        """kill -9 for the primary, and later the standby becomes the primary."""
        self.server.kill()
        time.sleep(pause_s)
        self.standby.promote()

    @property
    def address(self) -> str:
        first, second = (f"{each.host}:{each.port}" for each in (self.server, self.standby))
        options = "" if self._fence_floor is None else f"#fence_floor={self._fence_floor}"
        return f"{self.server.url.replace(first, f'{first},{second}')}{options}"

    def unlimited(self) -> list[str]:
        url, _, _ = self.address.partition("#")
        with PostgresBackend.from_url(url) as backend:
            return long_lived(backend)


class SQLiteStore:
    """A file that all workers open."""

    max_processes = 8

    def __enter__(self) -> Self:
        self._folder = TemporaryDirectory(prefix="syncguard-sqlite-")
        self.path = Path(self._folder.name) / "locks.sqlite3"
        return self

    def __exit__(self, *_exc: object) -> None:
        self._folder.cleanup()

    @property
    def address(self) -> str:
        return f"sqlite:///{self.path}"

    def unlimited(self) -> list[str]:
        with SQLiteBackend(self.path) as backend:
            return long_lived(backend)


class MemoryStore:
    """Locks in the memory of the one worker process; nothing of it is left after the run."""

    max_processes = 1
    address = "memory://history"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None: ...

    def unlimited(self) -> list[str]:
        return []


def long_lived(backend: LockBackend) -> list[str]:
    """The locks that end later than any worker asked for."""
    page = listing_of(backend).page_raw(limit=1_000)
    return [info.key for info in page.locks if info.expires_at_ms > page.now_ms + _LONGEST_MS]
