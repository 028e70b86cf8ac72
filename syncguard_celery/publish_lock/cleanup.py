"""Releases publish-time locks that their task neither adopted nor handed over.

The function we wrap is not called in these cases, and a signal of Celery reports each of them:

- ``task_revoked``, in the worker's main process: the task was revoked or expired before it ran;
- ``task_unknown``: the worker does not know the task, and dropped its message;
- ``task_postrun``: the task's base class or ``before_start`` ended it.

If the task did run, the id in its message is no longer valid, and a release with it has no effect.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from typing import Any, Final

from celery.signals import task_postrun, task_received, task_revoked, task_unknown

from syncguard import LockBackend, LockError
from syncguard_celery.configured_backends import backend_of
from syncguard_celery.interrupt_on_loss import interrupts_disarmed
from syncguard_celery.message_header import header_in, hide_lock_id, take_lock
from syncguard_celery.options import LockOptions
from syncguard_celery.release import take_handed_over
from syncguard_celery.running_calls import enclosing
from syncguard_celery.task_call import locked_function

_WAIT_S: Final = 0.2
_IDLE_S: Final = 5.0
_RETRY_DELAYS_S: Final = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)


def listen() -> None:
    """Connect the receivers. Called only for tasks that need them: receivers take time."""
    task_received.connect(_hide_lock_id, weak=False, dispatch_uid=f"{__name__}.seal")
    task_revoked.connect(_release_revoked, weak=False, dispatch_uid=f"{__name__}.revoked")
    task_postrun.connect(_release_unclaimed, weak=False, dispatch_uid=f"{__name__}.unclaimed")


@task_unknown.connect(weak=False, dispatch_uid=f"{__name__}.unknown")
def _release_unknown(sender: Any = None, message: Any = None, **_: object) -> None:
    """The task's own backend is not known here: use the app's backend."""
    lock_id = header_in(message.headers).get("lock")
    if lock_id is not None:
        with contextlib.suppress(LockError):  # the app has none
            _release_thread.release(backend_of(LockOptions(), sender.app), lock_id)


def _hide_lock_id(request: Any = None, **_: object) -> None:
    hide_lock_id(header_in(request.request_dict))


def _release_revoked(sender: Any = None, request: Any = None, **_: object) -> None:
    locked = locked_function(sender)
    lock_id = None if locked is None else take_lock(request)
    if lock_id is not None:
        _release_thread.release(backend_of(locked.options, sender.app), lock_id)


def _release_unclaimed(sender: Any = None, task: Any = None, **_: object) -> None:
    """The task ended and did not adopt its lock, or handed it over to a retry never published."""
    locked = locked_function(sender)
    if locked is None or locked.options.at != "publish":
        return
    for lock_id in (take_lock(task.request), take_handed_over(task.request)):
        if lock_id is not None:
            _release_thread.release(backend_of(locked.options, sender.app), lock_id)


class _ReleaseThread:
    """Releases locks on a thread: a Redis that hangs must not block the worker's main loop.

    ``release`` waits briefly for the result. After a wait that was too short, later calls do not
    wait until the thread continues. A failed release is retried a few times: no other code does
    it, and the key would stay locked.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[LockBackend, str, threading.Event]]
        self._jobs = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_stuck = False

    def release(self, backend: LockBackend, lock_id: str) -> None:
        tried = threading.Event()
        self._jobs.put((backend, lock_id, tried))
        thread = self._thread
        if thread is None or not thread.is_alive():
            thread = threading.Thread(target=self._run, name="syncguard-cleanup", daemon=True)
            # An eager task may end inside of a task. On CPython 3.10 and 3.11 an interrupt of that
            # task inside of start() would reach the new thread, and start() would wait for ever.
            with interrupts_disarmed([outer.interrupt for outer in enclosing()]):
                thread.start()
            self._thread = thread
        if not self._is_stuck:
            self._is_stuck = not tried.wait(_WAIT_S)

    def _run(self) -> None:
        while True:
            try:
                backend, lock_id, tried = self._jobs.get(timeout=_IDLE_S)
            except queue.Empty:
                self._thread = None
                if self._jobs.empty():
                    return
                continue  # a job was added just now; a second thread does no harm
            for pause_s in _RETRY_DELAYS_S:
                time.sleep(pause_s)
                try:
                    # If the task ran, the id is no longer valid. A release that finds no lock
                    # would be reported as a loss, so look it up first.
                    if backend.lookup(lock_id=lock_id) is not None:
                        backend.release(lock_id)
                except Exception:
                    tried.set()
                else:
                    break
            tried.set()
            self._is_stuck = False


_release_thread: Final = _ReleaseThread()
