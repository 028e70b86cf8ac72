"""The frames of a task's traceback hold no raw key, lock id or password of ours."""

from __future__ import annotations

import traceback

import pytest
from redis.backoff import NoBackoff
from redis.retry import Retry

from syncguard import LockError
from syncguard.redis import RedisBackend
from syncguard_celery import current_lock, locked_task

PASSWORD = "hunter2-hunter2"


def lines_of_our_frames(error):
    return [
        f"{frame.name}: {name} = {value}"
        for frame in traceback.TracebackException.from_exception(error, capture_locals=True).stack
        if "/syncguard" in frame.filename and "/tests/" not in frame.filename
        for name, value in (frame.locals or {}).items()
    ]


def test_a_task_on_a_dead_redis_shows_no_secret(app):
    url = f"redis://:{PASSWORD}@127.0.0.1:1/0"
    with RedisBackend.from_url(url, retry=Retry(NoBackoff(), 0)) as dead:

        @locked_task(app=app, key="invoice:{n}", backend=dead, on_unavailable="fail")
        def settle(n): ...

        with pytest.raises(LockError) as caught:
            settle(771234)
    shown = lines_of_our_frames(caught.value)
    assert [line for line in shown if "invoice:771234" in line or PASSWORD in line] == []


def test_a_task_that_fails_under_its_lock_shows_no_secret(app, syncguard_backend):
    seen = []

    @locked_task(app=app, key="invoice:{n}", backend=syncguard_backend)
    def settle(n):
        seen.append(current_lock().lock_id)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        settle(771234)
    shown = lines_of_our_frames(caught.value)
    assert [line for line in shown if "invoice:771234" in line or seen[0] in line] == []
