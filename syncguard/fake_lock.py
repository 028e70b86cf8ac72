"""A lock without a server, for tests that need no real lock.

``fake_lock()`` puts a lock on the stack of ``syncguard.current``. Its fence has 15 digits and grows
with every lock of the process. It excludes nobody. No I/O.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from syncguard._lock.handles import Grant
from syncguard._lock.held import Held
from syncguard._lock.release_after_block import Disposal
from syncguard.clock import holder_clock_ms
from syncguard.constants import MAX_TTL_MS
from syncguard.current import Block, block_here, innermost
from syncguard.keys import format_fence, generate_lock_id

_NO_BACKEND: Final = object()
_fences: Final = itertools.count(1)


@contextmanager
def fake_lock(key: str) -> Iterator[Held]:
    """Act as if this code held the lock. The same key inside gets the same fence again."""
    around = block_here(_NO_BACKEND, key)
    held = _held(key) if around is None else around.held
    block = Block(_NO_BACKEND, key, held, around)
    innermost.set(block)
    try:
        yield held
    finally:
        block.leave()
        if around is None:
            held.end()


def _held(key: str) -> Held:
    now_ms = holder_clock_ms()
    return Held(
        Grant(
            lock_id=generate_lock_id(),
            fence=format_fence(next(_fences)),
            expires_at_ms=round(now_ms) + MAX_TTL_MS,
            key=key,
            ttl_ms=MAX_TTL_MS,  # a debugger may stop the test for a long time
            sent_at_ms=now_ms,
            disposal=Disposal(),
        )
    )
