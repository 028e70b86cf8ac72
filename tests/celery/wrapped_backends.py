"""Backends that wrap another one and change one thing; and a release as by an administrator."""

from __future__ import annotations

from syncguard import LockError


def release_as_administrator(backend, key):
    """Force the release, as an administrator would: the heartbeat then loses the lock."""
    info = backend.lookup(key=key)
    assert backend.force_release(info.key_hash, fence=info.fence, lock_id_hash=info.lock_id_hash).ok


class WrappedBackend:
    """Passes everything that a subclass does not change to another backend."""

    def __init__(self, backend):
        self.backend = backend

    def __getattr__(self, name):
        return getattr(self.backend, name)


class RefusesSome(WrappedBackend):
    """Refuses some attempts, as if another holder had the lock then and released it at once."""

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
    """A backend without a queue of contending tasks."""

    def next_turn(self, *_args, **_options):
        return None

    def end_wait(self, *_args):
        raise AssertionError("no task was given a ticket")


class FailsSomeAdoptions(WrappedBackend):
    """Fails some adoptions, as Redis does during a failover."""

    def __init__(self, backend, failures):
        super().__init__(backend)
        self.failures = failures

    def adopt(self, *args, **options):
        if self.failures:
            self.failures -= 1
            raise LockError("ServiceUnavailable")
        return self.backend.adopt(*args, **options)
