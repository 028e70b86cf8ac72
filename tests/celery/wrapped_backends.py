"""Backends that are another one in all but one thing, and the hand of an administrator."""

from __future__ import annotations

from syncguard import LockError


def release_as_administrator(backend, key):
    """As an administrator would: the heartbeat finds the lock gone."""
    info = backend.lookup(key=key)
    assert backend.force_release(info.key_hash, fence=info.fence, lock_id_hash=info.lock_id_hash).ok


class WrappedBackend:
    """A backend that is another one in everything that a test does not change."""

    def __init__(self, backend):
        self.backend = backend

    def __getattr__(self, name):
        return getattr(self.backend, name)


class RefusesSome(WrappedBackend):
    """Refuses some attempts, as if somebody had held the lock just then and let go at once."""

    def __init__(self, backend, refusals):
        super().__init__(backend)
        self.refusals = refusals

    def acquire(self, *args, **options):
        if self.refusals:
            self.refusals -= 1
            with self.backend.acquire(*args, **options):
                return self.backend.acquire(*args, **options)
        return self.backend.acquire(*args, **options)


class WithoutQueue(WrappedBackend):
    """Keeps no queue of those who come back."""

    def next_turn(self, *_args, **_options):
        return None

    def end_wait(self, *_args):
        raise AssertionError("nobody was told to wait")


class FailsSomeAdoptions(WrappedBackend):
    """Fails some adoptions, as a Redis does in the middle of a failover."""

    def __init__(self, backend, failures):
        super().__init__(backend)
        self.failures = failures

    def adopt(self, *args, **options):
        if self.failures:
            self.failures -= 1
            raise LockError("ServiceUnavailable")
        return self.backend.adopt(*args, **options)
