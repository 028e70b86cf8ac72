"""Tasks whose messages are delivered again: after kill -9, after a time-out, after a loss."""

from __future__ import annotations

import os
import signal
import time

from worker_app import app, note, notes, wait_for_go

from syncguard_celery import current_fence, locked_task


def work(name: str, die: bool) -> str:
    """Begin; kill this process the first time if asked; wait for the test; end."""
    note(name, "begin")
    if die and notes.set(f"died:{name}", "1", nx=True):
        os.kill(os.getpid(), signal.SIGKILL)
    wait_for_go(name)  # the test may have to start a second worker meanwhile
    note(name, "end")
    return f"done with {current_fence()}"


_LATE = {
    "app": app,
    "key": "delivery:{name}",
    "on_contention": "skip",
    "skip_result": "skipped",
    "acks_late": True,
}


@locked_task(ttl_ms=30_000, reject_on_worker_lost=True, **_LATE)
def skipping_late(name):
    return work(name, die=False)


@locked_task(ttl_ms=10_000, reject_on_worker_lost=True, **_LATE)
def killed_late(name, die=False):
    return work(name, die)


@locked_task(
    ttl_ms=10_000, max_retries=1, default_retry_delay=0, retry_on_worker_lost=True, **_LATE
)
def retried_by_the_worker(name, die=False):
    return work(name, die)


@locked_task(app=app, key="delivery:{name}", ttl_ms=3_000, on_lost="retry", bind=True)
def retried_when_lost(self, name):
    note(name, "begin", retries=self.request.retries)
    if self.request.retries == 0:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            time.sleep(0.005)
    return self.request.retries


@locked_task(
    app=app, key="delivery:{name}", ttl_ms=6_000, max_hold_ms=8_000, on_lost="retry", max_retries=1
)
def hanging_always(name):
    note(name, "begin")
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        time.sleep(0.005)
