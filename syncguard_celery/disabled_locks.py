"""Whether locks are disabled in this process. ``syncguard_celery.testing.unlocked`` sets it."""

from __future__ import annotations

from contextlib import ContextDecorator

_depth: list[None] = []


def locks_disabled() -> bool:
    """Whether locked tasks run without their locks."""
    return bool(_depth)


class DisabledLocks(ContextDecorator):
    """Disables locks in a ``with`` block or, as a decorator, in a function. Can be nested."""

    def __enter__(self) -> None:
        _depth.append(None)

    def __exit__(self, *_exc: object) -> None:
        _depth.pop()
