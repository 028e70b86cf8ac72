"""Reads the replies of the scripts. The shape of every reply is checked.

Pure functions, and ``Reader`` for replies that need a backend's display hash.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from syncguard._backend.granted import Granted, log_fence_warning
from syncguard._backend.listing_and_health import LockPage
from syncguard._backend.optional import Refusal, Turn
from syncguard.clock import is_live, redis_server_time_ms
from syncguard.constants import FENCE_MAX, FENCE_WARN, TIME_TOLERANCE_MS
from syncguard.errors import LockError
from syncguard.types import AbsenceReason, ExtendResult, LockInfoDebug, ReleaseResult

Reply = object

_REFUSED: Final = Refusal()
_RELEASED: Final = ReleaseResult(True)
_ASSUMED: Final = ReleaseResult(True, assumed=True)
_REASONS: Final[dict[object, AbsenceReason]] = {0: "not-found", -1: "not-found", -2: "expired"}


class Reader:
    """Reads replies that contain the data of a lock."""

    def __init__(self, display_hash: Callable[[str], str]) -> None:
        self._hash = display_hash

    def acquire(self, reply: Reply, lock_id: str, key: str) -> Granted | Refusal:
        # Not a match statement: here it would cost as much as packing the request.
        if type(reply) is list and len(reply) == 3:
            granted, fence, expires_at_ms = reply
            if granted == 1 and type(expires_at_ms) is int:
                return Granted(lock_id, self._fence(fence, key), expires_at_ms, key)
        return _refusal(reply)

    def adopt(self, reply: Reply, lock_id: str) -> Granted | AbsenceReason:
        match reply:
            case [1, fence, int(expires_at_ms), key]:
                user_key = _text(key)
                return Granted(lock_id, self._fence(fence, user_key), expires_at_ms, user_key)
            case 0 | -1 | -2:
                return _REASONS[reply]
        raise malformed("adopt")

    def lookup(self, reply: Reply) -> LockInfoDebug | None:
        match reply:
            case None:
                return None
            case [record, bytes() | str() as seconds, bytes() | str() as microseconds]:
                return self._info(record, redis_server_time_ms((seconds, microseconds)))
        raise malformed("lookup")

    def live_locks(self, reply: Reply) -> LockPage:
        match reply:
            case [*listed, int(total)]:
                infos, now_ms = self._listed(listed, "live_locks")
                return LockPage(infos, total, now_ms)
        raise malformed("live_locks")

    def walk(self, reply: Reply) -> tuple[str, list[LockInfoDebug]]:
        match reply:
            case [bytes() | str() as cursor, *listed]:
                return _text(cursor), self._listed(listed, "find_live_locks")[0]
        raise malformed("find_live_locks")

    def _listed(self, reply: Reply, what: str) -> tuple[list[LockInfoDebug], int]:
        match reply:
            case [bytes() | str() as seconds, bytes() | str() as microseconds, list(records)]:
                now_ms = redis_server_time_ms((seconds, microseconds))
                infos = (self._info(record, now_ms) for record in records if record is not None)
                return [info for info in infos if info is not None], now_ms
        raise malformed(what)

    def _fence(self, raw: object, key: str) -> str:
        fence = _text(raw)
        if len(fence) != len(FENCE_MAX) or not fence.isdigit():
            raise malformed("acquire")
        if fence > FENCE_WARN:
            log_fence_warning(self._hash(key), fence)
        return fence

    def _info(self, record: object, now_ms: int) -> LockInfoDebug | None:
        try:
            data = json.loads(_text(record))
            key, lock_id = str(data["key"]), str(data["lockId"])
            expires_at_ms = int(data["expiresAtMs"])
            if not is_live(expires_at_ms, now_ms, TIME_TOLERANCE_MS):
                return None
            return LockInfoDebug(
                key_hash=self._hash(key),
                lock_id_hash=self._hash(lock_id),
                expires_at_ms=expires_at_ms,
                acquired_at_ms=int(data["acquiredAtMs"]),
                fence=str(data["fence"]),
                holder=data.get("holder"),
                key=key,
                lock_id=lock_id,
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            # "from None": the decoder's error contains the record, with its key and lock id.
            raise malformed("lookup") from None


def read_release(reply: Reply) -> ReleaseResult:
    if reply == 1:
        return _RELEASED
    if isinstance(reply, int) and reply in _REASONS:
        return ReleaseResult(False, _REASONS[reply])
    raise malformed("release")


def read_extend(reply: Reply) -> ExtendResult:
    return read_extends(reply, 1)[0]


def read_extends(reply: Reply, count: int) -> list[ExtendResult]:
    """The results of ``count`` locks that were extended in one call."""
    if not isinstance(reply, list) or len(reply) != count:
        raise malformed("extend")
    return [
        ExtendResult(True, value)
        if type(value) is int and value > 0
        else ExtendResult(False, None, _reason_of(value))
        for value in reply
    ]


def _reason_of(value: object) -> AbsenceReason:
    if isinstance(value, int) and value in _REASONS:
        return _REASONS[value]
    raise malformed("extend")


def read_counts(reply: Reply) -> tuple[int, int]:
    match reply:
        case [int(live), int(fences)]:
            return live, fences
    raise malformed("counts")


def read_turn(reply: Reply, ticket: str) -> Turn:
    match reply:
        case [1, int(), int()]:
            return Turn(ticket)
        case [0, int(delay_ms), int(place_ms)]:
            return Turn(None, delay_ms, place_ms)
    raise malformed("next_turn")


def read_resent_release(reply: Reply, result: ReleaseResult) -> ReleaseResult:
    """Return the result of a release that was sent twice, because the first reply was lost.

    If the second request found no lock, the first most likely released it. This is not certain,
    because the lock may have expired before. If the second request found another holder, the lock
    was certainly lost before.
    """
    return _ASSUMED if reply == -1 else result


def _refusal(reply: Reply) -> Refusal:
    match reply:
        case 0:
            return _REFUSED
        case [0, int(remaining_ms)]:
            return Refusal(remaining_ms if remaining_ms >= 0 else None)
        case [-1]:
            raise LockError(
                "Internal", "the fence counter of this key is at its maximum: use another key"
            )
    raise malformed("acquire")


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    try:
        if isinstance(value, bytes):
            return value.decode()
    except UnicodeDecodeError:
        pass
    raise malformed("a script")


def malformed(what: str) -> LockError:
    return LockError("Internal", f"the reply to {what} is not in SyncGuard's format")
