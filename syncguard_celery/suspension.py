"""The switch that ``syncguard_celery.testing.unlocked`` turns: for the whole process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

_depth: list[None] = []


def suspended() -> bool:
    """Whether locked tasks run without their locks."""
    return bool(_depth)


@contextlib.contextmanager
def suspending() -> Iterator[None]:
    _depth.append(None)
    try:
        yield
    finally:
        _depth.pop()
