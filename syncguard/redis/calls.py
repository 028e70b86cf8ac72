"""Every operation on Redis as a value: which script, which keys, which arguments, how to read it.

No I/O here, and no difference between blocking and asyncio: both drivers run the same calls.
All input is checked while a call is made, so that bad input never reaches a connection.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Literal, NamedTuple, TypeVar

from syncguard.backend import Refusal
from syncguard.clock import is_live, redis_server_time_ms
from syncguard.constants import (
    CLEANUP_GUARD_MS,
    DEFAULT_KEY_PREFIX,
    FENCE_MAX,
    FENCE_WARN,
    TIME_TOLERANCE_MS,
)
from syncguard.errors import LockError, invalid_argument
from syncguard.keys import (
    generate_lock_id,
    hash_key,
    keyed_hash,
    validate_holder,
    validate_lock_id,
    validate_ttl_ms,
)
from syncguard.redis import scripts
from syncguard.redis.names import LockNames, Names, Space
from syncguard.types import AbsenceReason, ExtendResult, LockInfo, LockInfoDebug, ReleaseResult

T = TypeVar("T")
Reply = object
FenceFloor = Literal["clock"]

PAGE: Final = 1000
"""How many locks one script call lists at most."""

WAKE_TTL_MS: Final = 2_000
"""How long a wake-up may lie that nobody takes."""

WAITING_SLACK_MS: Final = 1_000
"""How much longer than the wait the waiter's flag lives, so that it outlasts slow networks."""

_logger = logging.getLogger("syncguard")
_REFUSED: Final = Refusal()
_TOLERANCE: Final = str(TIME_TOLERANCE_MS)
_REASONS: Final[dict[object, AbsenceReason]] = {0: "not-found", -1: "not-found", -2: "expired"}


@dataclass(slots=True)  # not frozen: that would double the price of making one
class Call(Generic[T]):
    """One round trip. ``read`` turns the reply into the result."""

    script: scripts.Script
    keys: tuple[str, ...]
    args: tuple[str | int, ...]
    read: Callable[[Reply], T]
    key: str | None = None
    lock_id: str | None = None
    if_resent: Callable[[T], T] | None = None
    """Corrects the result of a request that had to be sent again, where Redis cannot tell."""


class Granted(NamedTuple):
    """What Redis said of a lock that was just acquired or adopted."""

    lock_id: str
    fence: str
    expires_at_ms: int
    key: str


class Calls:
    """The calls of one backend: its names, its hashes, its options."""

    def __init__(
        self,
        key_prefix: str = DEFAULT_KEY_PREFIX,
        *,
        cleanup_in_is_locked: bool = False,
        hash_secret: str | bytes | None = None,
        fence_floor: FenceFloor | None = None,
        clustered: bool = False,
    ) -> None:
        if not isinstance(cleanup_in_is_locked, bool):
            raise invalid_argument("cleanup_in_is_locked must be True or False")
        if fence_floor not in (None, "clock"):
            raise invalid_argument("fence_floor must be None or 'clock'")
        self.names: Final = Names(key_prefix, clustered=clustered)
        self.hash: Final = _display_hash(hash_secret)
        self._floor = fence_floor or ""
        self._guard = str(CLEANUP_GUARD_MS) if cleanup_in_is_locked else ""
        self._tail = (self._floor, FENCE_MAX)

    # -- taking and giving back ---------------------------------------------------------------

    def acquire(
        self, key: str, ttl_ms: int, holder: str | None, *, wait_ms: int | None = None
    ) -> Call[Granted | Refusal]:
        names = self._names_of(key)
        validate_ttl_ms(ttl_ms)
        validate_holder(holder)
        lock_id = _lock_id_in(names.bucket)
        space = names.space
        keys: tuple[str, ...] = (
            names.lock,
            self.names.index(lock_id),
            names.fence,
            space.live,
            space.tally,
        )
        label = "" if holder is None else f',"holder":{json.dumps(holder, ensure_ascii=False)}'
        record = f'{{"lockId":"{lock_id}","key":{names.json}{label}'
        args: tuple[str | int, ...] = (lock_id, ttl_ms, _TOLERANCE, record, *self._tail)
        if wait_ms:
            keys = (*keys, names.waiting)
            args = (*args, wait_ms + WAITING_SLACK_MS)

        def read(reply: Reply) -> Granted | Refusal:
            # By hand: a match statement here would cost as much as the packing.
            if type(reply) is list and len(reply) == 3:
                granted, fence, expires_at_ms = reply
                if granted == 1 and type(expires_at_ms) is int:
                    return Granted(lock_id, self._fence(fence, names.key), expires_at_ms, names.key)
            return _read_refusal(reply)

        return Call(scripts.ACQUIRE, keys, args, read, names.key, lock_id)

    def release(self, lock_id: str) -> Call[ReleaseResult]:
        validate_lock_id(lock_id)
        space = self.names.space_of(lock_id)
        return Call(
            scripts.RELEASE,
            (self.names.index(lock_id), space.live),
            (lock_id, _TOLERANCE, space.waiting_head, space.wake_head, WAKE_TTL_MS),
            _read_release,
            lock_id=lock_id,
            if_resent=_release_took_effect,
        )

    def extend(self, lock_id: str, ttl_ms: int) -> Call[ExtendResult]:
        validate_lock_id(lock_id)
        validate_ttl_ms(ttl_ms)
        return Call(
            scripts.EXTEND,
            (self.names.index(lock_id), self.names.space_of(lock_id).live),
            (lock_id, ttl_ms),
            _read_extend,
            lock_id=lock_id,
        )

    def adopt(self, lock_id: str, ttl_ms: int, holder: str | None) -> Call[Granted | AbsenceReason]:
        validate_lock_id(lock_id)
        validate_ttl_ms(ttl_ms)
        validate_holder(holder)
        new_id = _lock_id_in(self.names.bucket_of(lock_id))

        def read(reply: Reply) -> Granted | AbsenceReason:
            match reply:
                case [1, fence, int(expires_at_ms), key]:
                    user_key = _text(key)
                    return Granted(new_id, self._fence(fence, user_key), expires_at_ms, user_key)
                case 0 | -1 | -2:
                    return _REASONS[reply]
            raise _malformed("adopt")

        return Call(
            scripts.ADOPT,
            (
                self.names.index(lock_id),
                self.names.index(new_id),
                self.names.space_of(lock_id).live,
            ),
            (lock_id, new_id, ttl_ms, holder or ""),
            read,
            lock_id=lock_id,
        )

    def pass_on(self, key: str) -> Call[bool]:
        names = self._names_of(key)
        return Call(
            scripts.PASS_ON,
            (names.lock, names.waiting, names.wake),
            (WAKE_TTL_MS,),
            lambda reply: reply == 1,
            names.key,
        )

    # -- looking ------------------------------------------------------------------------------

    def is_locked(self, key: str) -> Call[bool]:
        names = self._names_of(key)
        return Call(
            scripts.IS_LOCKED,
            (names.lock, names.space.live),
            (_TOLERANCE, self._guard, names.space.index_head),
            lambda reply: reply == 1,
            names.key,
        )

    def lookup(self, key: str | None, lock_id: str | None) -> Call[LockInfoDebug | None]:
        """The raw record. Only the raw helpers may hand it out as it is."""
        if (key is None) == (lock_id is None):
            raise invalid_argument("lookup takes either key or lock_id, and not both")
        if key is not None:
            names = self._names_of(key)
            return Call(scripts.LOOKUP_BY_KEY, (names.lock,), (), self._read_lookup, names.key)
        lock_id = validate_lock_id(lock_id or "")
        index = self.names.index(lock_id)
        return Call(scripts.LOOKUP_BY_ID, (index,), (lock_id,), self._read_lookup, lock_id=lock_id)

    def live_locks(self, space: Space, offset: int, limit: int) -> Call[list[LockInfoDebug]]:
        return Call(scripts.LIVE_LOCKS, (space.live,), (offset, limit), self._read_live)

    def counts(self, space: Space) -> Call[tuple[int, int]]:
        return Call(scripts.COUNTS, (space.live, space.tally), (), _read_counts)

    # -- reading replies ----------------------------------------------------------------------

    def _names_of(self, key: str) -> LockNames:
        try:
            return self.names.of(key)
        except TypeError:  # unhashable: cannot be looked up in the cache, nor be a key
            raise invalid_argument(f"a key must be a str, not {type(key).__name__}") from None

    def _fence(self, raw: object, key: str) -> str:
        fence = _text(raw)
        if len(fence) != len(FENCE_MAX) or not fence.isdigit():
            raise _malformed("acquire")
        if fence > FENCE_WARN:
            log_fence_warning(self.hash(key), fence)
        return fence

    def _read_lookup(self, reply: Reply) -> LockInfoDebug | None:
        match reply:
            case None:
                return None
            case [record, bytes() | str() as seconds, bytes() | str() as microseconds]:
                return self._info(record, redis_server_time_ms((seconds, microseconds)))
        raise _malformed("lookup")

    def _read_live(self, reply: Reply) -> list[LockInfoDebug]:
        match reply:
            case [bytes() | str() as seconds, bytes() | str() as microseconds, list(records)]:
                now_ms = redis_server_time_ms((seconds, microseconds))
                infos = (self._info(record, now_ms) for record in records if record is not None)
                return [info for info in infos if info is not None]
        raise _malformed("live_locks")

    def _info(self, record: object, now_ms: int) -> LockInfoDebug | None:
        try:
            data = json.loads(_text(record))
            key, lock_id = str(data["key"]), str(data["lockId"])
            expires_at_ms = int(data["expiresAtMs"])
            if not is_live(expires_at_ms, now_ms, TIME_TOLERANCE_MS):
                return None
            return LockInfoDebug(
                key_hash=self.hash(key),
                lock_id_hash=self.hash(lock_id),
                expires_at_ms=expires_at_ms,
                acquired_at_ms=int(data["acquiredAtMs"]),
                fence=str(data["fence"]),
                holder=data.get("holder"),
                key=key,
                lock_id=lock_id,
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            # "from None": the decoder's error carries the record, with its key and lock id.
            raise _malformed("lookup") from None


def sanitized(info: LockInfoDebug) -> LockInfo:
    """The same lock without what must not be shown."""
    return LockInfo(
        info.key_hash,
        info.lock_id_hash,
        info.expires_at_ms,
        info.acquired_at_ms,
        info.fence,
        info.holder,
    )


def log_fence_warning(key_hash: str, fence: str) -> None:
    """Say early that a counter nears its end, while there is time to choose another key."""
    _logger.warning(
        "fence %s of key %s has passed the warning threshold %s; at %s the key can no longer be"
        " locked",
        fence,
        key_hash,
        FENCE_WARN,
        FENCE_MAX,
    )


def _read_refusal(reply: Reply) -> Refusal:
    match reply:
        case 0:
            return _REFUSED
        case [0, int(remaining_ms)]:
            return Refusal(remaining_ms if remaining_ms >= 0 else None)
        case [-1]:
            raise LockError("Internal", "the fence counter of this key is used up: use another key")
    raise _malformed("acquire")


def _read_release(reply: Reply) -> ReleaseResult:
    if reply == 1:
        return _RELEASED
    if isinstance(reply, int) and reply in _REASONS:
        return ReleaseResult(False, _REASONS[reply])
    raise _malformed("release")


def _read_extend(reply: Reply) -> ExtendResult:
    match reply:
        case [1, int(expires_at_ms)]:
            return ExtendResult(True, expires_at_ms)
        case 0 | -1 | -2:
            return ExtendResult(False, None, _REASONS[reply])
    raise _malformed("extend")


def _read_counts(reply: Reply) -> tuple[int, int]:
    match reply:
        case [int(live), int(fences)]:
            return live, fences
    raise _malformed("counts")


def _release_took_effect(result: ReleaseResult) -> ReleaseResult:
    # The request was sent twice, and the second found nothing. Then the first did its work, or
    # the lock had expired before it; the caller no longer holds it in either case.
    return _RELEASED if result.reason == "not-found" else result


_RELEASED: Final = ReleaseResult(True)


def _lock_id_in(bucket: str) -> str:
    return bucket + generate_lock_id()[len(bucket) :]


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    try:
        if isinstance(value, bytes):
            return value.decode()
    except UnicodeDecodeError:
        pass
    raise _malformed("a script")


def _malformed(what: str) -> LockError:
    return LockError("Internal", f"the reply to {what} is not in SyncGuard's format")


def _display_hash(secret: str | bytes | None) -> Callable[[str], str]:
    if secret is None:
        return hash_key
    if not isinstance(secret, str | bytes) or not secret:
        raise invalid_argument("hash_secret must be a non-empty str or bytes")
    key = secret.encode() if isinstance(secret, str) else secret
    return lambda value: keyed_hash(key, value)
