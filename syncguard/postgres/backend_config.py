"""The settings that the blocking and the asyncio PostgreSQL backend share."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import psycopg

from syncguard._backend.backend_base import BackendConfig
from syncguard._backend.deadline import Deadline
from syncguard._backend.listing_and_health import Health
from syncguard._backend.settings import GivenLocation, Location, SettingProblem
from syncguard._sql.backend_options import FenceFloor, SqlOptions
from syncguard._sql.table_names import DEFAULT_FENCES_TABLE, DEFAULT_LOCKS_TABLE
from syncguard.constants import DEFAULT_KEY_PREFIX
from syncguard.errors import invalid_argument
from syncguard.keys import validate_ttl_ms
from syncguard.postgres._transport.idle_connections import IdleConnections
from syncguard.postgres.address import Address
from syncguard.postgres.error_codes import FAULTS, lock_error
from syncguard.postgres.health import ServerFacts, make_health
from syncguard.postgres.location import read_location
from syncguard.postgres.statement_calls import Calls
from syncguard.postgres.statements import protect_sql
from syncguard.postgres.table_names import Tables
from syncguard.postgres.wake_listener import Listener
from syncguard.types import BackendCapabilities, OnReleaseError

if TYPE_CHECKING:
    from typing_extensions import Self

POSTGRES_CAPABILITIES: Final = BackendCapabilities(
    backend="postgres", supports_fencing=True, time_authority="server"
)

DEFAULT_MAX_CONNECTIONS: Final = 8
DEFAULT_TIMEOUT_MS: Final = 5_000

CLEANUP_EVERY: Final = 128
"""A backend cleans up at every so many releases: more rows than it can have added since."""

SETUP_LOCK: Final = 0x53796E63
"""The advisory lock of setup(): CREATE TABLE IF NOT EXISTS fails if two run at the same time."""

SETUP_TIMEOUT_MS: Final = 30_000
"""How long setup() waits for another one."""


class Configured(BackendConfig):
    """The checked settings of a backend, and the ``Calls`` made from them."""

    def __init__(
        self,
        url: str,
        *,
        key_prefix: str = DEFAULT_KEY_PREFIX,
        cleanup_in_is_locked: bool = False,
        on_release_error: OnReleaseError | None = None,
        dispose_timeout_ms: int | None = None,
        hash_secret: str | bytes | None = None,
        fence_floor: FenceFloor | None = None,
        default_holder: Callable[[], str] | None = None,
        locks_table: str = DEFAULT_LOCKS_TABLE,
        fences_table: str = DEFAULT_FENCES_TABLE,
        listen_url: str | None = None,
        max_connections: int = DEFAULT_MAX_CONNECTIONS,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        **connection_options: object,
    ) -> None:
        options = SqlOptions(
            key_prefix,
            hash_secret=hash_secret,
            fence_floor=fence_floor,
            default_holder=default_holder,
            cleanup_in_is_locked=cleanup_in_is_locked,
        )
        self._calls = Calls(Tables(locks_table, fences_table), options)
        self._address = Address(url, connection_options)
        # Named, so that an operator can tell it from the others in pg_stat_activity.
        self._listen_address = Address(
            url if listen_url is None else listen_url,
            {"application_name": "syncguard-listen", **connection_options},
        )
        self._has_listen_address = listen_url is not None
        if type(max_connections) is not int or max_connections < 1:
            raise invalid_argument("max_connections must be a whole number, one or more")
        self._max_connections = max_connections
        self._timeout_ms = validate_ttl_ms(timeout_ms, "timeout_ms")
        super().__init__(
            self._calls.names.prefix, self._calls.hash, on_release_error, dispose_timeout_ms
        )
        self._releases = itertools.count(1)
        self._make_runner()

    @abstractmethod
    def _make_runner(self) -> None:
        """The last step of the constructor: make what sends the calls. Connects to nothing."""

    @classmethod
    def from_url(cls, url: str, *, key_prefix: str = DEFAULT_KEY_PREFIX, **options: object) -> Self:
        """Make a backend from a URL, without connecting. The options are those of the class."""
        return cls(url, key_prefix=key_prefix, **options)  # type: ignore[arg-type]

    @classmethod
    def read_location(cls, given: GivenLocation) -> Location | SettingProblem:
        """Read and check the settings of a project: a URL or an entry of Django's DATABASES."""
        return read_location(given)

    @property
    def capabilities(self) -> BackendCapabilities:
        return POSTGRES_CAPABILITIES

    @property
    def tables(self) -> Tables:
        """The names of the tables, validated."""
        return self._calls.tables

    @property
    def setup_sql(self) -> str:
        """What ``setup()`` executes: for migrations, and to read before."""
        return self._calls.setup()

    @property
    def protect_sql(self) -> str:
        """For a transaction of the caller: fails to find a row if the lock is not held any more."""
        return protect_sql(self._calls.tables)

    @property
    def _listener(self) -> Listener:
        return Listener.of(self._listen_address)

    def _must_clean_up(self) -> bool:
        return next(self._releases) % CLEANUP_EVERY == 0

    def _health(
        self,
        facts: ServerFacts,
        live_locks: int,
        sent_at_ms: float,
        received_at_ms: float,
        idle: IdleConnections,
    ) -> Health:
        connection = idle.take()
        is_direct = connection is not None and connection.is_direct
        if connection is not None:
            idle.keep(connection)
        return make_health(
            facts,
            live_locks=live_locks,
            sent_at_ms=sent_at_ms,
            received_at_ms=received_at_ms,
            is_direct=is_direct,
            can_listen=is_direct or self._has_listen_address,
            fence_floor=self._calls.options.fence_floor is not None,
        )

    def _set_up(self) -> None:
        deadline = Deadline.after(max(self._timeout_ms, SETUP_TIMEOUT_MS))
        fault: Exception | None = None
        for conninfo in self._address.conninfos:
            seconds = max(2, int(self._address.connect_timeout_s or deadline.left_s()))
            try:
                with psycopg.connect(conninfo.decode(), connect_timeout=seconds) as connection:
                    connection.execute(f"SET LOCAL lock_timeout = {SETUP_TIMEOUT_MS}")
                    connection.execute("SELECT pg_advisory_xact_lock(%s)", (SETUP_LOCK,))
                    connection.execute(self.setup_sql.encode())
                return
            except FAULTS as error:
                fault = error
        assert fault is not None
        raise lock_error(fault, server=str(self._address)) from fault
