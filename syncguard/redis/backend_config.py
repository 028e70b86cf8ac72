"""The settings that the blocking and the asyncio Redis backend share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Final

import redis
import redis.asyncio

from syncguard._backend.backend_base import BackendConfig
from syncguard._backend.settings import GivenLocation, Location, SettingProblem
from syncguard.errors import invalid_argument
from syncguard.redis._transport.connections import describe_server, socket_timeout_s
from syncguard.redis.location import OWN_SETTINGS, read_location
from syncguard.redis.replica_acknowledgement import acknowledgement_of
from syncguard.redis.script_calls import Call, Calls, FenceFloor
from syncguard.redis.undo_thread import Target, Undo, undo_thread
from syncguard.types import BackendCapabilities, OnReleaseError

REDIS_CAPABILITIES: Final = BackendCapabilities(
    backend="redis", supports_fencing=True, time_authority="server"
)


class Configured(BackendConfig):
    """The checked settings of a backend, and the ``Calls`` made from them."""

    own_settings: ClassVar[tuple[str, ...]] = OWN_SETTINGS

    def __init__(
        self,
        client: object,
        *,
        key_prefix: str,
        cleanup_in_is_locked: bool,
        on_release_error: OnReleaseError | None,
        dispose_timeout_ms: int | None,
        hash_secret: str | bytes | None,
        fence_floor: FenceFloor | None,
        default_holder: Callable[[], str] | None,
        min_replicas: int,
        replica_timeout_ms: int,
    ) -> None:
        if not callable(getattr(client, "eval", None)):
            kind = type(self).__name__
            raise invalid_argument(f"{kind} takes a redis-py client; see {kind}.from_url")
        self._client: Any = client
        self._clustered = isinstance(client, redis.RedisCluster | redis.asyncio.RedisCluster)
        self._calls = Calls(
            key_prefix,
            cleanup_in_is_locked=cleanup_in_is_locked,
            hash_secret=hash_secret,
            fence_floor=fence_floor,
            default_holder=default_holder,
            clustered=self._clustered,
            acknowledgement=acknowledgement_of(
                min_replicas, replica_timeout_ms, lambda: socket_timeout_s(client)
            ),
        )
        super().__init__(
            self._calls.names.prefix, self._calls.hash, on_release_error, dispose_timeout_ms
        )
        self._owns_client = False

    @classmethod
    def read_location(cls, given: GivenLocation) -> Location | SettingProblem:
        """Read and check the settings of a project: a URL or an entry of Django's CACHES."""
        return read_location(given)

    @property
    def capabilities(self) -> BackendCapabilities:
        return REDIS_CAPABILITIES

    def _check_connections(self, has_pool: bool) -> None:
        """WAIT has to follow on the connection of the script: a mock has no connections."""
        if self._calls.acknowledgement is not None and not (has_pool or self._clustered):
            raise invalid_argument("min_replicas needs a client of redis-py with real connections")

    def pass_on_call(self, key: str) -> Call[bool]:
        """Make the call that wakes another waiter when this one stops waiting."""
        return self._calls.pass_on(key)

    def _undo(self, lock_id: str, lock_name: str = "", ttl_ms: int = 0) -> Undo:
        """Enqueue the undo of a request that got no reply, or got it too late.

        ``lock_name`` is the storage key of its lock, if that is known.
        """
        call = self._calls.undo(lock_id)
        return undo_thread.enqueue(Undo(call, self._undo_target(lock_id), ttl_ms), lock_name)

    @abstractmethod
    def _undo_target(self, lock_id: str) -> Callable[[], Target]:
        """Where to send the undo of this lock id. The returned function runs on the undo thread."""

    def __repr__(self) -> str:
        server = describe_server(self._client)
        at = f", server={server!r}" if server else ""
        return f"{type(self).__name__}(key_prefix={self.key_prefix!r}{at})"
