"""The Celery app of these tests, and its tasks. Workers import it as ``-A worker_app``.

Tasks write notes about what they do to Redis, and wait until a test sets their ``go`` key.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sqlite3
import threading
import time

import redis
from celery import Celery, chord, group
from celery.exceptions import Retry, SoftTimeLimitExceeded
from celery.signals import before_task_publish

from syncguard import LockLost
from syncguard_celery import (
    current_fence,
    current_lock,
    inherited_fence,
    locked,
    locked_task,
)
from syncguard_celery.configured_backends import backend_of
from syncguard_celery.options import LockOptions

BROKER = os.environ["WORKER_APP_BROKER"]
LOCKS = os.environ["WORKER_APP_LOCKS"]

# No fixups: this app does not use the Django that other tests have set up.
app = Celery(
    "worker_app",
    broker=BROKER,
    backend=os.environ["WORKER_APP_RESULTS"],
    fixups=[],
    include=["redelivered_tasks", "outage_tasks"],
)
app.conf.update(
    syncguard_backend=LOCKS,
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        "visibility_timeout": float(os.environ.get("WORKER_APP_VISIBILITY", 3600)),
        # For versions of Kombu with these options: look every 5 s for messages to redeliver.
        "unacked_restore_interval": 5,
        "unacked_restore_throttle": 1,
    },
    result_expires=600,
    task_default_queue="prefork",
    worker_hijack_root_logger=False,
    worker_lost_wait=2.0,  # when a killed process is noticed; the default is 10 s
    worker_prefetch_multiplier=1,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    task_send_sent_event=False,
    timezone="UTC",
)

notes = redis.Redis.from_url(os.environ["WORKER_APP_NOTES"], socket_timeout=60)


# -- notes and go ---------------------------------------------------------------------------------


def note(name: str, event: str, **facts: object) -> None:
    facts.update(event=event, pid=os.getpid(), fence=current_fence(), at=time.monotonic())
    notes.rpush(f"notes:{name}", json.dumps(facts))


def wait_for_go(name: str, seconds: float = 250.0) -> None:
    deadline = time.monotonic() + seconds
    while not notes.exists(f"go:{name}"):
        if time.monotonic() > deadline:
            raise TimeoutError(name)
        time.sleep(0.01)


def visit(name: str, wait: bool = False, seconds: float = 0.0) -> str | None:
    """Enter the critical section, wait there if asked, and leave it."""
    note(name, "enter")
    try:
        if wait:
            wait_for_go(name)
        time.sleep(seconds)
        return current_fence()
    finally:
        note(name, "leave")


# -- contention ---------------------------------------------------------------------------------


@locked_task(app=app, key="visit:{name}", ttl_ms=3_000)
def visiting(name, wait=False, seconds=0.0):
    return visit(name, wait, seconds)


@locked_task(app=app, key="visit:{name}", ttl_ms=3_000, contention_timeout_ms=600)
def visiting_impatiently(name, wait=False):
    return visit(name, wait)


@locked_task(app=app, key="visit:{name}", ttl_ms=3_000, on_contention="skip", skip_result="skipped")
def skipping(name, wait=False):
    return visit(name, wait)


@locked_task(
    app=app, key="visit:{name}", ttl_ms=3_000, on_contention="wait", contention_timeout_ms=20_000
)
def waiting(name, wait=False):
    return visit(name, wait)


@locked_task(
    app=app, key="visit:{name}", ttl_ms=3_000, on_contention="wait", contention_timeout_ms=300
)
def waiting_briefly(name):
    return visit(name)


@locked_task(app=app, key="visit:{name}", ttl_ms=3_000, on_contention="fail")
def failing(name, wait=False):
    return visit(name, wait)


@locked_task(
    app=app,
    bind=True,
    key=lambda name, **_: f"visit:{name}",
    ttl_ms=3_000,
    on_contention=lambda self, policy, **_: policy,
    skip_result="chosen",
)
def choosing(self, name, policy="skip"):
    return visit(name)


@app.task(name="worker_app.under_app_task", bind=True)
@locked(key="visit:{name}", ttl_ms=3_000, on_contention="skip", skip_result="skipped")
def under_app_task(self, name, wait=False):
    return visit(name, wait)


@locked_task(key="visit:{name}", ttl_ms=3_000)
def shared(name):
    return visit(name)


@locked_task(app=app, key=lambda name: None)
def without_lock(name):
    return current_lock() is None


@locked_task(app=app, key="visit:{name}", ttl_ms=3_000, min_hold_ms=60_000, on_contention="fail")
def holding_at_least(name, fail=False):
    if fail:
        raise ValueError(name)
    return visit(name)


# -- retries --------------------------------------------------------------------------------------


class Flaky(Exception):
    pass


@locked_task(
    app=app,
    bind=True,
    key="visit:{name}",
    ttl_ms=3_000,
    min_hold_ms=60_000,
    on_contention="fail",
    max_retries=3,
)
def retrying(self, name, linger=0.0):
    """Fails at contention. The lock of its previous run must not count as contention."""
    note(name, "enter", retries=self.request.retries, inherited=inherited_fence(f"visit:{name}"))
    try:
        if self.request.retries < 2:
            raise self.retry(countdown=0)
    finally:
        time.sleep(linger)
        note(name, "leave")
    return self.request.retries


@locked_task(
    app=app,
    bind=True,
    key="visit:{name}",
    ttl_ms=3_000,
    min_hold_ms=60_000,
    on_contention="fail",
    autoretry_for=(Flaky,),
    retry_kwargs={"max_retries": 2, "countdown": 0},
)
def autoretrying(self, name):
    note(name, "enter", retries=self.request.retries, inherited=inherited_fence(f"visit:{name}"))
    if self.request.retries < 2:
        raise Flaky
    return self.request.retries


@locked_task(app=app, bind=True, key="visit:{name}", ttl_ms=3_000, max_retries=0)
def never_retrying(self, name):
    """It has no retries. Contention does not need one."""
    visit(name)
    return self.request.retries


# -- losing -------------------------------------------------------------------------------------


def _linger(how: str) -> None:
    if how == "sleep":
        time.sleep(30)
    elif how == "socket":
        here, _there = socket.socketpair()
        here.recv(1)
    else:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            time.sleep(0.005)


def _lose(name: str, how: str) -> None:
    note(name, "enter")
    try:
        _linger(how)
    except LockLost:
        note(name, "lost", thread=threading.current_thread().name)
        raise


@locked_task(app=app, key="lossy:{name}", ttl_ms=3_000)
def losing(name, how="sleep"):
    _lose(name, how)


@locked_task(app=app, key="lossy:{name}", ttl_ms=3_000)
def swallowing(name, how):
    try:
        _lose(name, how)
    except LockLost:
        return "swallowed"


@locked_task(app=app, key="lossy:{name}", ttl_ms=3_000, on_lost="signal")
def noticing(name):
    note(name, "enter")
    deadline = time.monotonic() + 30
    while not current_lock().lost and time.monotonic() < deadline:
        time.sleep(0.01)
    note(name, "noticed")
    return "done"


@locked_task(
    app=app,
    key="lossy:{name}",
    ttl_ms=3_000,
    on_lost=lambda held: notes.set(f"go:callback:{held.lock_id}", "1"),
)
def calling_back(name):
    note(name, "enter")
    wait_for_go(f"callback:{current_lock().lock_id}")
    note(name, "called back")


@locked_task(app=app, key="lossy:{name}", ttl_ms=3_000)
def long_running(name, seconds):
    """Runs longer than its TTL: only a heartbeat can keep its lock."""
    note(name, "enter")
    time.sleep(seconds)
    current_lock().ensure_held()
    return current_fence()


@locked_task(app=app, key="lossy:{name}", ttl_ms=600, max_hold_ms=900)
def hanging(name):
    _lose(name, "sleep")


# -- ends of a task -----------------------------------------------------------------------------


@locked_task(app=app, key="visit:{name}", ttl_ms=120_000)
def ending(name, how):
    """It has a long TTL: if the lock is free soon after, it was released."""
    note(name, "enter")
    if how == "return":
        return "returned"
    if how == "raise":
        raise ValueError(name)
    try:
        time.sleep(250)
    except SoftTimeLimitExceeded:
        note(name, "soft")
        raise


@locked_task(app=app, key="visit:{name}", ttl_ms=2_000, acks_late=True, reject_on_worker_lost=True)
def surviving(name):
    """Its first run is killed; the redelivered one gets a higher fence."""
    note(name, "enter")
    if notes.llen(f"notes:{name}") == 1:
        time.sleep(60)
    return current_fence()


def _note_contention(name, **_):
    note(name, "contended")
    return "retry"


@locked_task(
    app=app, key="visit:{name}", ttl_ms=3_000, acks_late=True, on_contention=_note_contention
)
def redelivered(name):
    """Runs longer than the broker waits for its acknowledgement."""
    return visit(name, wait=True)


# -- publishing ---------------------------------------------------------------------------------


@locked_task(
    app=app,
    key="unique:{name}",
    at="publish",
    ttl_ms=3_000,
    on_contention="skip",
    skip_result="skipped",
)
def unique(name, wait=False, fail=False):
    if fail:
        raise ValueError(name)
    return visit(name, wait)


@locked_task(app=app, key="unique:{name}", at="publish", ttl_ms=3_000, on_contention="fail")
def unique_or_fail(name):
    return visit(name)


@locked_task(
    app=app,
    bind=True,
    key="unique:{name}",
    at="publish",
    ttl_ms=3_000,
    pending_ttl_ms=20_000,
    on_contention="fail",
    max_retries=2,
)
def unique_retrying(self, name, countdown=0, throw=True):
    note(name, "enter", retries=self.request.retries, header=_header(self))
    if self.request.retries < 1:
        self.retry(countdown=countdown, throw=throw)
        time.sleep(0.3)
    note(name, "leave")
    return self.request.retries


@locked_task(app=app, bind=True, key="unique:{name}", at="publish", ttl_ms=3_000)
def unique_repeating(self, name):
    """Publishes itself again with its own id: that is not a retry."""
    note(name, "enter")
    if notes.llen(f"notes:{name}") == 1:
        self.apply_async((name,), task_id=self.request.id, **_same_queue(self))
    return current_fence()


@locked_task(app=app, bind=True, key="unique:{name}", at="publish", ttl_ms=3_000)
def unique_forgotten(self, name):
    """Raises Retry, but publishes no retry."""
    note(name, "enter")
    raise Retry("not published")


@locked_task(app=app, key=lambda name: None, at="publish")
def unique_without_lock(name):
    return current_lock() is None


@locked_task(app=app, bind=True, key="unique:{name}", at="publish", ttl_ms=3_000)
def unique_moving(self, name, then):
    """Its retry has other arguments, and so another key."""
    note(name, "enter", locked=bool(current_lock() and is_locked(f"unique:{name}")))
    if then:
        raise self.retry(args=(then, None), countdown=0)
    return current_fence()


@locked_task(
    app=app,
    bind=True,
    key="unique:{name}",
    at="publish",
    ttl_ms=3_000,
    pending_ttl_ms=20_000,
    on_contention="fail",
    autoretry_for=(Flaky,),
    retry_kwargs={"max_retries": 1, "countdown": 8},
)
def unique_autoretrying(self, name, always=False):
    note(name, "enter", retries=self.request.retries)
    if always or self.request.retries < 1:
        raise Flaky
    return self.request.retries


@locked_task(
    app=app,
    key="unique:{name}",
    at="publish",
    ttl_ms=3_000,
    pending_ttl_ms=20_000,
    autoretry_for=(Flaky,),
    retry_kwargs={"countdown": 60},
)
def unique_autoretrying_later(name):
    raise Flaky


@locked_task(
    app=app,
    key="unique:{name}",
    at="publish",
    ttl_ms=3_000,
    autoretry_for=(Flaky,),
    retry_kwargs={"countdown": 0, "serializer": "no such"},
)
def unique_autoretrying_unpublished(name):
    """Its retry cannot be published."""
    note(name, "enter")
    raise Flaky


@locked_task(
    app=app, bind=True, key="unique:{name}", at="publish", ttl_ms=3_000, pending_ttl_ms=3_000
)
def unique_and_late(self, name):
    return visit(name)


@locked_task(
    app=app,
    bind=True,
    key="unique:{name}",
    at="publish",
    ttl_ms=2_000,
    acks_late=True,
    reject_on_worker_lost=True,
)
def unique_surviving(self, name):
    note(name, "enter")
    if notes.llen(f"notes:{name}") == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return current_fence()


@locked_task(app=app, bind=True, key="unique:{name}", at="publish", ttl_ms=3_000)
def unique_parent(self, name):
    note(name, "enter", header=_header(self), request=repr(self.request))
    child.apply_async((f"unique:{name}",), headers=self.request.headers)


def _same_queue(task):
    return {"queue": task.request.delivery_info["routing_key"]}


def _header(task):
    return task.request.get("syncguard")


# -- inherited fences ---------------------------------------------------------------------------


@app.task(bind=True)
def child(self, key, *_more):
    header = _header(self)
    note(key, "inherited", inherited=inherited_fence(key), header=header)
    return inherited_fence(key)


@app.task
def grandchild_of(key):
    return child.delay(key).id


@app.task
def middle(_result, key):
    return child.delay(key).id


@app.task
def gather(_results, key):
    note(key, "inherited", inherited=inherited_fence(key))
    return inherited_fence(key)


@locked_task(app=app, bind=True, key="family:{name}", ttl_ms=3_000)
def parent(self, name, how="child"):
    key = f"family:{name}"
    note(key, "fence")
    if how == "child":
        child.delay(key)
    elif how == "called":
        middle(None, key)
    elif how == "grandchild":
        grandchild_of.delay(key)
    elif how == "group":
        group(child.si(key), child.si(key)).delay()
    elif how == "chord":
        chord([child.si(key), child.si(key)], gather.s(key)).delay()
    elif how == "replace":
        raise self.replace(child.si(key))
    return current_fence()


@locked_task(app=app, key="family:{name}", ttl_ms=3_000, on_contention="fail")
def inner(name):
    return current_fence()


@locked_task(app=app, key="family:{name}", ttl_ms=3_000)
def outer(name):
    return [current_fence(), inner(name), inner.run(name), current_fence()]


@before_task_publish.connect
def rewrite_headers(headers=None, **_):
    """As tracing integrations do: a nested "headers" hides the other headers of the message."""
    if headers is not None and str(headers.get("id", "")).startswith("rewritten"):
        headers["headers"] = {"trace": "1"}


# -- stress ---------------------------------------------------------------------------------------


@locked_task(
    app=app,
    bind=True,
    key="stress:{number}",
    ttl_ms=3_000,
    acks_late=True,
    reject_on_worker_lost=True,
)
def stress(self, run, number, job, die=False):
    note(run, "enter", number=number, job=job)
    # Without isolation_level each statement is its own transaction: kill -9 loses nothing.
    with contextlib.closing(sqlite3.connect(rows_file(), timeout=30, isolation_level=None)) as rows:
        fence = current_fence()
        changed = rows.execute(
            "UPDATE rows SET fence = ? WHERE number = ? AND fence < ?", (fence, number, fence)
        ).rowcount
    if die and notes.set(f"died:{run}:{job}", "1", nx=True):
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01)
    note(run, "leave", number=number, job=job, changed=changed)
    return fence


def rows_file() -> str:
    return os.path.join(os.environ["WORKER_APP_FOLDER"], "rows.sqlite")


def is_locked(key: str) -> bool:
    return backend_of(LockOptions(), app).is_locked(key)


def unacked_for(task_id: str, url: str = BROKER) -> float:
    """For how many seconds the broker has waited for this task's acknowledgement."""
    with redis.Redis.from_url(url) as broker:
        for tag, message in broker.hgetall("unacked").items():
            score = broker.zscore("unacked_index", tag)
            if task_id in message.decode() and score is not None:
                return time.time() - score
    return 0.0
