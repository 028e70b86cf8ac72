"""Publish-time locks whose task never came to redeem or to hand on: who else releases them.

A task that is revoked or expires before it ran never reaches the function we wrap; only
``task_revoked`` tells, in the worker's main process. One that the worker does not know is dropped
there, and ``task_unknown`` tells. One whose base class or ``before_start`` ended it ends without
us, and ``task_postrun`` tells. The id in a message is spent if the task did run, so releasing by
it harms nobody.
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
from syncguard_celery.message_header import header_in, seal_lock, take_lock
from syncguard_celery.options import LockOptions
from syncguard_celery.release import handed_on
from syncguard_celery.task_call import locked_function

_AT_ONCE_S: Final = 0.2
_IDLE_S: Final = 5.0
_PAUSES_S: Final = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)


def listen() -> None:
    """From now on. Not earlier than the first task with a publish-time lock: receivers cost."""
    task_received.connect(_seal, weak=False, dispatch_uid=f"{__name__}.seal")
    task_revoked.connect(_release_revoked, weak=False, dispatch_uid=f"{__name__}.revoked")
    task_postrun.connect(_release_unclaimed, weak=False, dispatch_uid=f"{__name__}.unclaimed")


@task_unknown.connect(weak=False, dispatch_uid=f"{__name__}.unknown")
def _release_unknown(sender: Any = None, message: Any = None, **_: object) -> None:
    """Which backend its task would have used, nobody here can say: the app's, most likely."""
    lock_id = header_in(message.headers).get("lock")
    if lock_id is not None:
        with contextlib.suppress(LockError):  # there is none
            _elsewhere.release(backend_of(LockOptions(), sender.app), lock_id)


def _seal(request: Any = None, **_: object) -> None:
    seal_lock(header_in(request.request_dict))


def _release_revoked(sender: Any = None, request: Any = None, **_: object) -> None:
    locked = locked_function(sender)
    lock_id = None if locked is None else take_lock(request)
    if lock_id is not None:
        _elsewhere.release(backend_of(locked.options, sender.app), lock_id)


def _release_unclaimed(sender: Any = None, task: Any = None, **_: object) -> None:
    """The task is over: nobody redeemed its lock, or handed it on to a retry that nobody made."""
    locked = locked_function(sender)
    if locked is None or locked.options.at != "publish":
        return
    for lock_id in (take_lock(task.request), handed_on(task.request)):
        if lock_id is not None:
            _elsewhere.release(backend_of(locked.options, sender.app), lock_id)


class _Elsewhere:
    """Releases on a thread: a Redis that hangs must not stop the worker's main loop.

    Usually it is done at once, and waited for. When it is not, nobody waits for the next ones. One
    that fails is tried again for a while: nobody else will, and its key would stay blocked.
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
            thread.start()
            self._thread = thread
        if not self._is_stuck:
            self._is_stuck = not tried.wait(_AT_ONCE_S)

    def _run(self) -> None:
        while True:
            try:
                backend, lock_id, tried = self._jobs.get(timeout=_IDLE_S)
            except queue.Empty:
                self._thread = None
                if self._jobs.empty():
                    return
                continue  # somebody came just now; if they started another thread, no matter
            for pause_s in _PAUSES_S:
                time.sleep(pause_s)
                try:
                    # A task that ran has spent the id. A release that finds nothing would be
                    # reported as a loss, so look first.
                    if backend.lookup(lock_id=lock_id) is not None:
                        backend.release(lock_id)
                except Exception:
                    tried.set()
                else:
                    break
            tried.set()
            self._is_stuck = False


_elsewhere: Final = _Elsewhere()
