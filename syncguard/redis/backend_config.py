"""The settings that the blocking and the asyncio Redis backend share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final, TypeVar

import redis
import redis.asyncio

from syncguard._backend.settings import GivenLocation, Location, SettingProblem
from syncguard._lock.release_on_exit import Disposal, check_callback
from syncguard.errors import invalid_argument
from syncguard.redis.client_options import check_types, unknown_option
from syncguard.redis.location import read_location
from syncguard.redis.script_calls import Call, Calls, FenceFloor
from syncguard.types import BackendCapabilities, OnReleaseError

T = TypeVar("T")

REDIS_CAPABILITIES: Final = BackendCapabilities(
    backend="redis", supports_fencing=True, time_authority="server"
)

UNDO_PAUSES_S: Final = (0.0, 0.02, 0.1)
"""The pauses before each undo of an interrupted request.

The server may execute the request after the first undo, so undo it more than once.
"""


class Configured:
    """The checked settings of a backend, and the ``Calls`` made from them."""

    is_async: ClassVar[bool]
    twin: ClassVar[str | None]

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
        )
        check_callback("on_release_error", on_release_error, may_be_async=self.is_async)
        self._disposal = Disposal.of(on_release_error, dispose_timeout_ms)
        self._owns_client = False

    @classmethod
    def read_location(cls, given: GivenLocation) -> Location | SettingProblem:
        """Read and check the settings of a project: a URL or an entry of Django's CACHES."""
        return read_location(given)

    @property
    def capabilities(self) -> BackendCapabilities:
        return REDIS_CAPABILITIES

    @property
    def disposal(self) -> Disposal:
        return self._disposal

    @property
    def key_prefix(self) -> str:
        return self._calls.names.prefix

    def hash(self, value: str) -> str:
        """Return the hash of a key or a lock id that this backend shows in pages and logs."""
        return self._calls.hash(value)

    def pass_on_call(self, key: str) -> Call[bool]:
        """Make the call that wakes another waiter when this one stops waiting."""
        return self._calls.pass_on(key)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(key_prefix={self.key_prefix!r})"


def client_from_url(make: Callable[..., T], url: str, options: dict[str, object]) -> T:
    check_types(options)
    try:
        client = make(url, **options)
        pool: Any = client.connection_pool  # type: ignore[attr-defined]
        pool.connection_class(**pool.connection_kwargs)  # raises for a wrong option; no I/O
    except Exception as error:
        # "from None", and no part of the original text: that text can quote a part of the URL,
        # and the part may be the password.
        unknown = unknown_option(error, options) if isinstance(error, TypeError) else None
        if unknown is not None:
            raise unknown from None
        what = "option is unknown" if isinstance(error, TypeError) else "URL is malformed"
        raise invalid_argument(
            f"could not create a Redis client: the {what}; a URL looks like"
            " redis://[[username]:[password]]@host:6379/0"
        ) from None
    return client
