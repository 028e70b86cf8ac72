"""``min_replicas``: a change counts only when so many replicas have confirmed it. No I/O.

WAIT confirms what its own connection wrote before, so it is sent together with the script, on the
same connection. The reply of such a call is a pair: the reply of the script, and the number of
replicas. Its reader raises ``ServiceUnavailable`` if there are too few.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar, cast
from urllib.parse import parse_qsl, urlencode, urlunsplit

from syncguard._backend.granted import Granted
from syncguard.errors import ErrorContext, ServiceUnavailable, invalid_argument
from syncguard.split_url import split_url
from syncguard.types import ExtendResult

T = TypeVar("T")

DEFAULT_REPLICA_TIMEOUT_MS: Final = 500
MAX_REPLICAS: Final = 1_000
OPTIONS: Final = ("min_replicas", "replica_timeout_ms")
"""The names of the two options, also in the query of a URL."""

_HEARTBEAT_PART: Final = 8
"""A heartbeat waits for replicas at most this part of the TTL: it gives up an answer, and the
connection with it, after a third."""


class TooFewReplicas(ServiceUnavailable):
    """Too few replicas confirmed a change that the server has made."""


@dataclass(frozen=True, slots=True)
class ReplicaAcknowledgement:
    """How many replicas must confirm, and how long to wait for them."""

    replicas: int
    timeout_ms: int

    @property
    def wait(self) -> tuple[str, ...]:
        return ("WAIT", str(self.replicas), str(self.timeout_ms))

    def for_heartbeat(self, ttl_ms: int) -> ReplicaAcknowledgement:
        """The same with less time: the next extensions wait for the answer of this one."""
        limit = max(1, ttl_ms // _HEARTBEAT_PART)
        return ReplicaAcknowledgement(self.replicas, min(self.timeout_ms, limit))

    def check(self, result: object, confirmed: object, context: ErrorContext) -> None:
        """Raise TooFewReplicas if the server made a change that too few replicas confirmed."""
        if isinstance(confirmed, Exception):
            raise confirmed
        count = cast("int", confirmed)
        if count >= self.replicas:
            return
        if isinstance(result, Granted):
            effect = "the lock is released"
        elif isinstance(result, ExtendResult) and result.ok:
            effect = "the extension does not count"
        else:
            return
        raise TooFewReplicas(
            f"only {count} of {self.replicas} replicas confirmed the change within"
            f" {self.timeout_ms} ms; {effect}. Check the replicas of this Redis, or lower"
            " min_replicas",
            context,
        )

    def reading(
        self, read: Callable[[object], T], key: str | None, lock_id: str | None
    ) -> Callable[[object], T]:
        """A reader for the pair of the script's reply and WAIT's."""

        def read_both(reply: object) -> T:
            of_script, confirmed = cast("tuple[object, object]", reply)
            result = read(of_script)
            self.check(result, confirmed, ErrorContext(key=key, lock_id=lock_id))
            return result

        return read_both


def acknowledgement_of(
    min_replicas: int, replica_timeout_ms: int, find_socket_timeout_s: Callable[[], float | None]
) -> ReplicaAcknowledgement | None:
    """Check the two options. None: no replica has to confirm."""
    if type(min_replicas) is not int or not 0 <= min_replicas <= MAX_REPLICAS:
        raise invalid_argument(f"min_replicas must be a whole number from 0 to {MAX_REPLICAS}")
    if type(replica_timeout_ms) is not int or not 1 <= replica_timeout_ms < 2**31:
        raise invalid_argument("replica_timeout_ms must be a whole number of milliseconds above 0")
    if not min_replicas:
        return None
    socket_timeout_s = find_socket_timeout_s()
    if socket_timeout_s is not None and replica_timeout_ms >= socket_timeout_s * 1000:
        raise invalid_argument(
            "replica_timeout_ms must be shorter than the socket_timeout of the client, which would"
            " close the connection while Redis waits for its replicas"
        )
    return ReplicaAcknowledgement(min_replicas, replica_timeout_ms)


def options_of_url(url: str) -> tuple[str, dict[str, int]]:
    """Take the two options out of a URL's query: redis-py does not know them."""
    if not isinstance(url, str) or not any(name in url for name in OPTIONS):
        return url, {}
    try:
        parts = split_url(url)
    except ValueError:
        return url, {}  # the client refuses it
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    found: dict[str, int] = {}
    for name, value in pairs:
        if name in OPTIONS:
            if not (value.isascii() and value.isdigit()):
                raise invalid_argument(f"{name} in the URL must be a whole number")
            found[name] = int(value)
    rest = urlencode([pair for pair in pairs if pair[0] not in OPTIONS])
    return urlunsplit(parts._replace(query=rest)), found
