"""A TTL below one second was probably meant in seconds: each call site gives one warning."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from types import ModuleType

import pytest

import syncguard
from syncguard import LockLost, ShortTTLWarning, aio, lock
from syncguard._lock import held, options
from syncguard.redis import AsyncRedisBackend, RedisBackend, redis_backend, redis_backend_async
from syncguard.testing import RedisServer


@pytest.fixture
def caught_warnings() -> Iterator[list[warnings.WarningMessage]]:
    """The warnings of this test, with Python's default filters."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        yield caught


@pytest.fixture
def stopped_clock(monkeypatch):
    """On the holder's clock no TTL ends: however late a reply comes, it is a grant."""
    for module in (redis_backend, redis_backend_async, held, options):
        monkeypatch.setattr(module, "holder_clock_ms", lambda: 0.0)


may_expire = partial(contextlib.suppress, LockLost)
"""Around a lock whose TTL may end in its block, because the machine is busy."""


def enter(backend: RedisBackend, ttl_ms: int) -> None:
    with may_expire(), lock(backend, "k", ttl_ms):
        pass


def test_a_ttl_below_one_second_gives_a_warning(syncguard_backend, caught_warnings):
    enter(syncguard_backend, 30)
    (warning,) = caught_warnings
    assert warning.category is ShortTTLWarning
    assert str(warning.message) == (
        "ttl_ms=30 is 30 milliseconds, not seconds: the lock expires after 0.03 s."
        " Write ttl_ms=30_000 for 30 seconds."
    )


def test_the_warning_names_the_line_that_uses_the_lock(syncguard_backend, caught_warnings):
    enter(syncguard_backend, 30)
    (warning,) = caught_warnings
    assert warning.filename == __file__
    assert warning.lineno == enter.__code__.co_firstlineno + 1


def test_each_call_site_gives_one_warning(syncguard_backend, caught_warnings):
    for _ in range(3):
        enter(syncguard_backend, 999)
    for _ in range(3):
        with may_expire(), contextlib.ExitStack() as stack:
            stack.enter_context(lock(syncguard_backend, "k", 999))
    assert len(caught_warnings) == 2
    assert {warning.filename for warning in caught_warnings} == {__file__}


@pytest.mark.usefixtures("stopped_clock")
def test_one_second_or_more_gives_no_warning(syncguard_backend, caught_warnings):
    enter(syncguard_backend, 1_000)
    assert syncguard_backend.acquire("k", 1_000)
    assert caught_warnings == []


@pytest.mark.usefixtures("stopped_clock")
def test_acquire_warns_too(syncguard_backend, caught_warnings):
    assert syncguard_backend.acquire("k", 500)
    assert syncguard.with_telemetry(syncguard_backend, on_event=print).acquire("other", 500)
    assert [warning.filename for warning in caught_warnings] == [__file__, __file__]


@pytest.mark.usefixtures("stopped_clock")
def test_hold_gives_no_warning_for_an_acquired_lock(syncguard_backend, caught_warnings):
    acquired = syncguard_backend.acquire("k", 500)
    caught_warnings.clear()
    with may_expire(), syncguard.hold(syncguard_backend, acquired):
        pass
    assert caught_warnings == []


@pytest.mark.usefixtures("stopped_clock")
def test_asyncio_warns_too(syncguard_redis: RedisServer, caught_warnings):
    async def main() -> None:
        async with AsyncRedisBackend.from_url(syncguard_redis.url) as backend:
            with may_expire():
                async with aio.lock(backend, "k", 500):
                    pass
            assert await backend.acquire("k", 500)

    asyncio.run(main())
    assert [warning.filename for warning in caught_warnings] == [__file__, __file__]
    assert all(warning.category is aio.ShortTTLWarning for warning in caught_warnings)


SOURCE = """
from syncguard import lock

@lock(backend, "k", 30)
def settle():
    pass

@lock(backend, "k", 30)
def collect():
    pass
"""


def test_importing_a_module_gives_no_warning(syncguard_backend, caught_warnings):
    module = ModuleType("of_a_user")
    module.__dict__.update(backend=syncguard_backend, __file__="of_a_user.py")
    exec(compile(SOURCE, "of_a_user.py", "exec"), module.__dict__)  # noqa: S102
    assert caught_warnings == []
    for function in (module.settle, module.collect, module.settle):
        with may_expire():
            function()
    # The line of the function: all functions of a framework are called from the same line.
    assert [(warning.filename, warning.lineno) for warning in caught_warnings] == [
        ("of_a_user.py", 4),
        ("of_a_user.py", 8),
    ]


def test_the_warning_of_a_decorated_callable_without_code_names_its_caller(
    syncguard_backend, caught_warnings
):
    with may_expire():
        lock(syncguard_backend, "k", 30)(partial(int, "1"))()
    (warning,) = caught_warnings
    assert warning.filename == __file__


@pytest.mark.filterwarnings("error::syncguard.ShortTTLWarning")
def test_if_warnings_are_errors_nothing_is_sent(syncguard_redis, syncguard_backend):
    before = syncguard_redis.commands_processed()
    with pytest.raises(ShortTTLWarning):
        enter(syncguard_backend, 30)
    with pytest.raises(ShortTTLWarning):
        syncguard_backend.acquire("k", 30)
    assert syncguard_redis.commands_processed() == before


@pytest.mark.slow
def test_the_pytest_plugin_silences_the_warning(run_pytest):
    """Tests use short TTLs on purpose. The option -W enables the warning."""
    quiet = run_pytest()
    assert " 1 passed" in quiet, quiet
    loud = run_pytest("-W", "error::syncguard.ShortTTLWarning")
    assert "ShortTTLWarning: ttl_ms=30 is 30 milliseconds" in loud, loud


@pytest.fixture
def run_pytest(tmp_path):
    (tmp_path / "test_user.py").write_text(
        "def test_it(syncguard_backend):\n    syncguard_backend.acquire('k', 30)\n"
    )
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nfilterwarnings = error\nasyncio_default_fixture_loop_scope = function\n"
    )

    def run(*options: str) -> str:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, "."]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DJANGO_")}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
        )
        return done.stdout + done.stderr

    return run
