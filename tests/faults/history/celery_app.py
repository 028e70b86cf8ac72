"""The Celery app of a run, and its one task. ``celery_worker`` starts a process that imports it.

It reads the orders of that process from the environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import warnings
from pathlib import Path
from threading import get_ident
from typing import Any, Final

from celery import Celery
from celery.exceptions import Ignore, Reject, Retry
from celery.signals import setup_logging, task_failure, task_postrun, task_prerun, worker_ready

from history.backends import open_backend
from history.celery_worker import TASK
from history.library_log import judge_the_log
from history.log import Log
from history.observer import Observer
from history.worker import Orders, mark_ready
from syncguard import LockError, LockLost, current_lock
from syncguard_celery import locked_task, task_lock_lost

_ANSWERS: Final = (LockError, Retry, Ignore, Reject)

warnings.simplefilter("ignore")  # of short TTLs
orders = Orders(**json.loads(os.environ["HISTORY_ORDERS"]))
log = Log(Path(orders.log))
seen = Observer(log, orders.name)
_opened = contextlib.ExitStack()  # closed with the process
# A task that retries may begin in another thread before its earlier run has ended.
_held: dict[str, tuple[int, Any]] = {}
"""The thread and the lock of each task that runs, by task id."""
_calls: dict[int, contextlib.AbstractContextManager[None]] = {}
"""The call that runs in each thread."""

app = Celery("history", broker=os.environ["HISTORY_BROKER"], fixups=[], set_as_current=False)
app.conf.update(
    syncguard_backend=_opened.enter_context(open_backend(orders.address, log)),
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
    worker_hijack_root_logger=False,
    worker_prefetch_multiplier=1,
    worker_lost_wait=1.0,
)


@locked_task(app=app, name=TASK, bind=True, key="{key}", ttl_ms=orders.ttl_ms)
def visit(self: Any, key: str, seconds: float) -> None:
    held = current_lock()
    assert held is not None
    seen.granted(key, held, orders.ttl_ms)
    _held[self.request.id] = get_ident(), held
    try:
        end = time.monotonic() + seconds
        while seen.believes(held) and time.monotonic() < end:
            time.sleep(0.01)
    finally:
        seen.leaving(held)


@setup_logging.connect
def _log(**_: object) -> None:
    judge_the_log(seen)


@worker_ready.connect
def _ready(**_: object) -> None:
    mark_ready(orders)


@task_prerun.connect
def _begin(**_: object) -> None:
    call = _calls[get_ident()] = seen.call("celery task")
    call.__enter__()


@task_lock_lost.connect
def _lost(task_id: str, **_: object) -> None:
    if task_id in _held:
        _thread, held = _held[task_id]
        seen.told(held, "on_lost")


@task_failure.connect
def _failed(exception: BaseException, **_: object) -> None:
    if not isinstance(exception, _ANSWERS):
        seen.foreign(exception)


@task_postrun.connect
def _end(task_id: str, retval: object, **_: object) -> None:
    thread, held = _held.get(task_id, (None, None))
    if thread == get_ident():
        del _held[task_id]
        if isinstance(retval, LockLost):
            seen.told(held, "left")
        seen.left(held)
    call = _calls.pop(get_ident(), None)
    if call is not None:
        call.__exit__(None, None, None)
