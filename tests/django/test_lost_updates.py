"""No update is lost: real web servers, 4 processes of 4 threads, on real databases.

``SYNCGUARD_TEST_ROUNDS`` is the number of requests of each variant.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from temporary_databases import counted, start_counting, temporary_database

from syncguard.testing import RedisServer
from syncguard.testing.free_port import free_port

HERE = Path(__file__).parent
REQUESTS = int(os.environ.get("SYNCGUARD_TEST_ROUNDS", "48"))
AT_ONCE = 16

pytestmark = pytest.mark.rounds

for package in ("gunicorn", "uvicorn", "rest_framework"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)


COMMANDS = {
    "gunicorn": [
        "counting_site.servers:wsgi",
        "--workers=4",
        "--threads=4",
        "--preload",
        "--graceful-timeout=2",
    ],
    "uvicorn": [
        "counting_site.servers:asgi",
        "--workers=4",
        "--lifespan=off",
        "--timeout-graceful-shutdown=2",
    ],
}


@contextmanager
def serving(server, database, locks, log):
    """The address of a web server of four processes."""
    port = free_port()
    where = {"gunicorn": f"--bind=127.0.0.1:{port}", "uvicorn": f"--port={port}"}
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
        "DJANGO_SETTINGS_MODULE": "counting_site.settings",
        "COUNTING_DATABASE": json.dumps(database),
        "COUNTING_LOCKS": json.dumps(locks),
    }
    command = [sys.executable, "-m", server, *COMMANDS[server], where[server]]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, cwd=log.parent, stdout=output, stderr=output
        )
        try:
            _wait_until_ready(f"http://127.0.0.1:{port}/", process, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


def _wait_until_ready(address, process, log):
    deadline = time.monotonic() + 200
    while True:
        try:
            return visit(address)
        except urllib.error.HTTPError as error:  # 404: the site answers
            return error.close()
        except OSError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)


def visit(address):
    with urllib.request.urlopen(address, timeout=110) as response:  # noqa: S310 - our own
        return response.read()


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    """Web servers by their settings, each started once."""
    started = {}
    with RedisServer() as redis, ExitStack() as stack:

        def site(server, database, locks):
            locks = locks or {"LOCATION": redis.url}
            key = server, json.dumps(database), json.dumps(locks)
            if key not in started:
                log = tmp_path_factory.mktemp(server) / "log"
                started[key] = stack.enter_context(serving(server, database, locks, log))
            return started[key]

        yield site


@pytest.fixture
def lost_updates(request, sites, django_db_blocker):
    """How many of the requests that were answered are missing from the counter."""

    def run(server, view, database, *, locks=None, **settings):
        entry = {**request.getfixturevalue(f"{database}_settings"), **settings}
        with django_db_blocker.unblock(), temporary_database("counting", entry) as alias:
            start_counting(alias)
            address = f"{sites(server, entry, locks)}/{view}/"
            with ThreadPoolExecutor(AT_ONCE) as clients:
                answers = list(clients.map(visit, [address] * REQUESTS))
            assert answers == [b"counted"] * REQUESTS
            return REQUESTS - counted(alias)

    return run


@pytest.mark.parametrize("server", COMMANDS)
def test_locks_in_the_database_of_atomic_requests_lose_no_update(
    lost_updates, syncguard_postgres, server
):
    """The lock is committed at once, on another connection than the transaction of the view."""
    assert syncguard_postgres.is_running  # and has the tables of the locks
    locks = {"BACKEND": "syncguard.postgres.PostgresBackend", "DATABASE": "default"}
    # Django refuses ATOMIC_REQUESTS for async views.
    view, is_atomic = ("plain", True) if server == "gunicorn" else ("async", False)
    assert lost_updates(server, view, "postgres", locks=locks, ATOMIC_REQUESTS=is_atomic) == 0


@pytest.mark.parametrize("database", ["postgres", "sqlite"])
@pytest.mark.parametrize("atomic", [True, False], ids=["ATOMIC_REQUESTS", "autocommit"])
def test_a_locked_view_loses_no_update(lost_updates, database, atomic):
    assert lost_updates("gunicorn", "plain", database, ATOMIC_REQUESTS=atomic) == 0


@pytest.mark.parametrize("view", ["method", "action"])
def test_a_lock_inside_the_transaction_of_the_request_loses_no_update(lost_updates, view):
    assert lost_updates("gunicorn", view, "postgres", ATOMIC_REQUESTS=True) == 0


@pytest.mark.parametrize("database", ["postgres", "sqlite"])
def test_a_locked_async_view_loses_no_update(lost_updates, database):
    assert lost_updates("uvicorn", "async", database) == 0


def test_alock_around_a_transaction_loses_no_update(lost_updates):
    assert lost_updates("uvicorn", "async-with", "postgres") == 0


def test_at_repeatable_read_a_locked_view_loses_no_update_on_mariadb(lost_updates):
    assert lost_updates("gunicorn", "plain", "mariadb", ATOMIC_REQUESTS=True) == 0


def test_without_a_lock_updates_are_lost(lost_updates):
    """Otherwise the tests above would prove nothing."""
    assert lost_updates("gunicorn", "unlocked", "postgres", ATOMIC_REQUESTS=True) > 0
