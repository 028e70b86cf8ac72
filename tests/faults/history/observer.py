"""What every worker does beside using locks: write down what it asked, got, believed and heard."""

from __future__ import annotations

import contextlib
import itertools
import random
import traceback
from collections.abc import Iterator
from typing import Any

from history.log import Log, now, short_id
from syncguard import LockError


class Observer:
    """The log of one worker."""

    def __init__(self, log: Log, worker: str) -> None:
        self._log = log
        self._worker = worker
        self._numbers = itertools.count(1)

    @contextlib.contextmanager
    def call(self, text: str) -> Iterator[None]:
        """One visit of a key, with all its calls. A LockError is an answer like any other."""
        number = next(self._numbers)
        self._write("begin", call=number, text=text)
        outcome = "ok"
        try:
            yield
        except LockError as error:
            outcome = error.code
        except Exception as error:
            outcome = type(error).__name__
            self.foreign(error)
        self._write("end", call=number, text=outcome)

    def granted(self, key: str, grant: Any, ttl_ms: int, *, adopted: bool = False) -> None:
        """``grant`` is a ``Held``, or what ``acquire`` and ``adopt`` return."""
        deadline = getattr(grant, "deadline_ms", None)
        sent_at = grant.sent_at_ms if deadline is None else deadline - ttl_ms
        self._write(
            "granted",
            lock=short_id(grant.lock_id),
            key=key,
            fence=grant.fence,
            ttl_ms=ttl_ms,
            sent_at=sent_at,
            deadline=sent_at + ttl_ms,
            adopted=adopted,
        )

    def believes(self, held: Any) -> bool:
        """Whether the holder believes in its lock now."""
        at = now()
        if held.lost:
            return False
        deadline = held.deadline_ms
        self._write("believed", at, lock=short_id(held.lock_id), deadline=deadline)
        return True

    def may_believe(self, grant: Any, ttl_ms: int) -> None:
        """The same for what ``acquire`` returned: its TTL is the only limit."""
        at = now()
        deadline = grant.sent_at_ms + ttl_ms
        if at < deadline:
            self._write("believed", at, lock=short_id(grant.lock_id), deadline=deadline)

    def told(self, held: Any, how: str) -> None:
        deadline = held.deadline_ms
        self._write("told", lock=short_id(held.lock_id), deadline=deadline, text=how)

    def leaving(self, grant: Any) -> None:
        self._write("leaving", lock=short_id(grant.lock_id))

    def left(self, grant: Any) -> None:
        self._write("left", lock=short_id(grant.lock_id))

    def foreign(self, error: BaseException) -> None:
        self._write("foreign", text="".join(traceback.format_exception(error))[-2_000:])

    def _write(self, kind: Any, at: float | None = None, **fields: object) -> None:
        self._log.write(kind, at, worker=self._worker, **fields)


class Choices:
    """What a worker does next, drawn from its seed."""

    VISITS = ("short", "extended", "overstayed", "watched", "handle", "handed_over", "forked")
    WEIGHTS = (75, 3, 1.5, 1.5, 9, 10)

    def __init__(self, seed: str, keys: int, ttl_ms: int, *, forks: bool = False) -> None:
        self._random = random.Random(seed)
        self._keys = keys
        self.ttl_ms = ttl_ms
        self._weights = (*self.WEIGHTS, 10 if forks else 0)

    def key(self) -> str:
        return f"key-{self._random.randrange(self._keys)}"

    def visit(self) -> str:
        return self._random.choices(self.VISITS, self._weights)[0]

    def short_s(self) -> float:
        return self._random.uniform(0, 0.015)

    def beyond_ttl_s(self) -> float:
        return self.ttl_ms / 1000 * self._random.uniform(1.1, 1.6)

    def pause_s(self) -> float:
        return self._random.uniform(0, 0.02)
