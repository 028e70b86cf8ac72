"""Reads the rows that the statements return. The shape of every answer is checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from syncguard._backend.granted import Granted
from syncguard._backend.listing_and_health import LockPage
from syncguard._backend.optional import Refusal
from syncguard._sql.rows import fence_exhausted, granted, lock_info
from syncguard.constants import TIME_TOLERANCE_MS
from syncguard.errors import LockError
from syncguard.types import AbsenceReason, ExtendResult, LockInfoDebug, ReleaseResult

Rows = list[list[str | None]]

_RELEASED: Final = ReleaseResult(True)
_ASSUMED: Final = ReleaseResult(True, assumed=True)
_REASONS: Final[dict[str | None, AbsenceReason]] = {
    "missing": "not-found",
    "expired": "expired",
}


class Release(NamedTuple):
    """The result of a release, and the lock's key if somebody waits for it."""

    result: ReleaseResult
    wake_key: str | None

    def __repr__(self) -> str:
        return f"<Release {self.result}>"


class Reader:
    """Reads rows that contain the data of a lock."""

    def __init__(self, display_hash: Callable[[str], str]) -> None:
        self._hash = display_hash

    def acquire(self, rows: Rows, lock_id: str, key: str) -> Granted | Refusal:
        match rows:
            case [["acquired", str(fence), str(expires_at_ms), _]]:
                return granted(self._hash, lock_id, fence, int(expires_at_ms), key)
            case [["held", _, _, remaining_ms]]:
                return Refusal(_try_again_ms(remaining_ms))
            case [["exhausted", *_]]:
                raise fence_exhausted()
        raise malformed("acquire")

    def adopt(self, rows: Rows, lock_id: str) -> Granted | AbsenceReason:
        match rows:
            case [["adopted", str(fence), str(expires_at_ms), str(key)]]:
                return granted(self._hash, lock_id, fence, int(expires_at_ms), key)
            case [[outcome, *_]] if outcome in _REASONS:
                return _REASONS[outcome]
        raise malformed("adopt")

    def lookup(self, rows: Rows) -> LockInfoDebug | None:
        if not rows:
            return None
        *columns, now_ms = rows[0]
        return self._info(columns, _number(now_ms))

    def page(self, rows: Rows) -> LockPage:
        if not rows:
            raise malformed("live_locks")
        total, now_ms = _number(rows[0][0]), _number(rows[0][1])
        infos = [self._info(columns, now_ms) for _, _, *columns in rows if columns[0] is not None]
        return LockPage([info for info in infos if info is not None], total, now_ms)

    def found(self, rows: Rows, page: int) -> tuple[str | None, list[LockInfoDebug]]:
        infos = [self._info(columns, _number(now_ms)) for _, now_ms, *columns in rows]
        after = rows[-1][0] if len(rows) == page else None
        return after, [info for info in infos if info is not None]

    def _info(self, columns: Sequence[str | None], now_ms: int) -> LockInfoDebug | None:
        match columns:
            case [str(key), str(lock_id), str(expires), str(acquired), str(fence), holder]:
                return lock_info(
                    self._hash,
                    key=key,
                    lock_id=lock_id,
                    expires_at_ms=int(expires),
                    acquired_at_ms=int(acquired),
                    fence=fence,
                    holder=holder,
                    now_ms=now_ms,
                )
        raise malformed("lookup")


def read_releases(rows: Rows, count: int) -> list[Release]:
    if len(rows) != count:
        raise malformed("release")
    return [
        Release(_RELEASED, wake_key)
        if outcome == "released"
        else Release(ReleaseResult(False, _reason(outcome)), None)
        for outcome, wake_key in rows
    ]


def read_resent_releases(rows: Rows, releases: list[Release]) -> list[Release]:
    """Return the results of releases that were sent twice, because the first reply was lost.

    A lock that the second request did not find was most likely released by the first. This is not
    certain: it may have been released, or have expired, before.
    """
    return [
        Release(_ASSUMED, None) if outcome == "missing" else release
        for (outcome, _), release in zip(rows, releases, strict=True)
    ]


def read_extends(rows: Rows, count: int) -> list[ExtendResult]:
    if len(rows) != count:
        raise malformed("extend")
    return [
        ExtendResult(True, _number(expires_at_ms))
        if outcome == "extended"
        else ExtendResult(False, None, _reason(outcome))
        for outcome, expires_at_ms in rows
    ]


def read_flag(rows: Rows) -> bool:
    match rows:
        case [["t" | "f" as flag]]:
            return flag == "t"
    raise malformed("is_locked")


def read_count(rows: Rows) -> int:
    match rows:
        case [[str(number)]]:
            return int(number)
    raise malformed("a count")


def read_text(rows: Rows) -> str | None:
    match rows:
        case [[text]]:
            return text
    raise malformed("undo")


def malformed(what: str) -> LockError:
    return LockError("Internal", f"the answer to {what} is not in SyncGuard's format")


def _reason(outcome: str | None) -> AbsenceReason:
    if outcome not in _REASONS:
        raise malformed("a statement")
    return _REASONS[outcome]


def _number(value: str | None) -> int:
    if value is None:
        raise malformed("a statement")
    return int(value)


def _try_again_ms(remaining_ms: str | None) -> int | None:
    """When to try again: at the end of the TTL, and from then on at the end of the tolerance."""
    if remaining_ms is None:
        return None
    left = int(remaining_ms)
    return left if left > 0 else left + TIME_TOLERANCE_MS
