"""The switch that ``syncguard_celery.testing.unlocked`` turns: for the whole process."""

from __future__ import annotations

from contextlib import ContextDecorator

_depth: list[None] = []


def locks_disabled() -> bool:
    """Whether locked tasks run without their locks."""
    return bool(_depth)


class DisabledLocks(ContextDecorator):
    """For a ``with`` block or, as a decorator, for a function. They nest."""

    def __enter__(self) -> None:
        _depth.append(None)

    def __exit__(self, *_exc: object) -> None:
        _depth.pop()
