"""The example project: all scenes pass, and it leaves nothing behind, however it ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from syncguard.testing import RedisServer

ROOT = Path(__file__).parents[2]
DEMO = [sys.executable, "-m", "example_project.demo"]
TIMEOUT_S = 240

pytestmark = pytest.mark.skipif(
    not (ROOT / "example_project").is_dir(), reason="the example project is not in this folder"
)


@pytest.fixture
def environment(tmp_path):
    """Environment variables without servers, and with a separate folder for temporary files."""
    unwanted = ("SYNCGUARD_URL", "CELERY_BROKER_URL", "DJANGO_SETTINGS_MODULE")
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return {**kept, "TMPDIR": str(tmp_path)}


class Demo:
    """A running demo."""

    def __init__(self, environment, *options):
        self.process = subprocess.Popen(
            [*DEMO, "--port", "0", *options],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.output = ""

    def read_until(self, pattern):
        """Wait until the output matches the pattern, and return the match."""
        alarm = threading.Timer(TIMEOUT_S, self.process.terminate)
        alarm.start()
        try:
            for line in self.process.stdout:
                self.output += line
                if found := re.search(pattern, self.output):
                    return found
        finally:
            alarm.cancel()
        raise AssertionError(f"no output matches {pattern!r}:\n{self.output}")

    def end(self, number=None):
        """Send a signal, if any, and return the exit code."""
        if number is not None:
            self.process.send_signal(number)
        self.output += self.process.communicate(timeout=TIMEOUT_S)[0]
        return self.process.returncode


@pytest.fixture
def start(environment):
    started = []

    def start(*options, **more):
        started.append(Demo({**environment, **more}, *options))
        return started[-1]

    yield start
    for demo in started:
        if demo.process.poll() is None:
            demo.end(signal.SIGTERM)


def processes_of(folder):
    """The ids of all processes that name the folder in their arguments or their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            facts = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            if os.fsencode(folder) in facts:
                found.append(int(process.name))
    return found


def assert_nothing_is_left(folder):
    deadline = time.monotonic() + 60
    while (left := [*processes_of(folder), *folder.iterdir()]) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left == []


@pytest.fixture(params=["Redis", "PostgreSQL", "SQLite"])
def store(request, environment, tmp_path_factory):
    """The name of a store for the locks; the demo gets its address."""
    if request.param == "PostgreSQL":
        server = request.getfixturevalue("syncguard_postgres_server")
        environment["SYNCGUARD_URL"] = server.url
    elif request.param == "SQLite":
        path = tmp_path_factory.mktemp("locks") / "locks.sqlite3"
        environment["SYNCGUARD_URL"] = f"sqlite:///{path}"
    return request.param


def test_the_demo_runs_all_scenes_and_all_checks_pass(store, environment, tmp_path):
    run = subprocess.run(
        [*DEMO, "--check"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    for sentence in (
        r"ok +Each held the lock once, one after the other: fences \d+ to \d+\.",
        r"ok +The task was delivered again, to process \d+, with the higher fence \d+\.",
        r"ok +A letter .* arrived late\. Its write, with fence \d+, was refused: StaleFence\.",
        rf"ok +The holder learned of the loss while {store} was still paused",
        r"ok +One task was queued\. The other 4 calls queued nothing",
        r"ok +The other 2 started later and skipped: the report was written exactly once\.",
        r"No live locks\.",
        r"All scenes passed, after \d+ s\.",
    ):
        assert re.search(sentence, run.stdout), run.stdout
    assert len(re.findall(r"ok +INV-\d+ was settled exactly once\.", run.stdout)) == 3
    assert "WRONG" not in run.stdout
    assert_nothing_is_left(tmp_path)


def test_the_demo_neither_pauses_nor_stops_servers_that_it_did_not_start(start, tmp_path):
    with RedisServer() as server:
        demo = start(SYNCGUARD_URL=server.url, CELERY_BROKER_URL=server.url)
        address = demo.read_until(r"The demo is running: +(\S+)")[1]
        with urllib.request.urlopen(address, timeout=60) as response:  # noqa: S310
            page = response.read().decode()
        assert "Only a store of the demo&#x27;s own can be paused." in page
        assert re.search(r"disabled data-missing>Pause Redis for 3 s<", page)
        demo.read_until(r"Ctrl-C stops everything\.")
        assert demo.end(signal.SIGTERM) == 0, demo.output
        assert "Nothing is left behind" in demo.output
        with server.client() as client:
            assert client.ping()
    assert_nothing_is_left(tmp_path)


def test_a_running_demo_lists_its_locks_and_leaves_nothing_after_kill_9(
    start, environment, tmp_path
):
    demo = start()
    address = demo.read_until(r"The demo is running: +(\S+)")[1]
    password = demo.read_until(r"log in as admin with the password (\S+)")[1]
    assert len(password) >= 16
    command = demo.read_until(r"(SYNCGUARD_URL=\S+ .* syncguard_status) --watch")[1]
    status = subprocess.run(
        ["/bin/sh", "-c", f"{command} --count"],
        cwd=ROOT,
        env={**environment, "EXAMPLE_DATABASE": ":memory:"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert status.returncode == 0, status.stderr
    assert "0" in status.stdout

    # Without the page's CSRF token, a button is refused.
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(address + "scenes/settle", data=b"", timeout=60)  # noqa: S310
    assert refused.value.code == 403
    refused.value.close()

    demo.end(signal.SIGKILL)
    assert_nothing_is_left(tmp_path)


def test_a_port_in_use_is_explained_and_nothing_is_left(start, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        demo = start("--port", str(taken.getsockname()[1]))
        demo.read_until(r"The demo cannot run: port \d+ cannot be used: .*Try --port 0\.")
        assert demo.end() == 1
    assert_nothing_is_left(tmp_path)


def test_the_demo_can_be_stopped_while_it_starts(start, tmp_path):
    demo = start()
    deadline = time.monotonic() + TIMEOUT_S
    while not list(tmp_path.glob("syncguard-demo-*/worker.log")):
        assert demo.process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert demo.end(signal.SIGINT) == 0, demo.output
    assert_nothing_is_left(tmp_path)


STOPPED_IN_A_DESTRUCTOR = """
import os, signal, time
from example_project.demo import Stopped, _stop_on_signals

class Connection:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

try:
    with _stop_on_signals():
        connection = Connection()
        del connection
        time.sleep(60)
except Stopped:
    print("stopped")
"""


def test_a_signal_that_comes_while_a_destructor_runs_stops_the_demo(environment):
    """A destructor cannot raise: Python prints its error, and goes on."""
    script = [sys.executable, "-c", STOPPED_IN_A_DESTRUCTOR]
    done = subprocess.run(
        script,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("stopped\n", "")


A_SCENE_BEGINS_MEANWHILE = """
import json, os
os.environ["DJANGO_SETTINGS_MODULE"] = "example_project.settings"
import django
django.setup()
from django.core.management import call_command
from django.db import connection
from django.test import RequestFactory
from example_project.story.models import Scene
from example_project.story.views import state

call_command("migrate", verbosity=0)
Scene.objects.create(kind="feed", key="old", ended_ms=1, ok=True)

begun = []
def begin_another(execute, sql, params, many, context):
    result = execute(sql, params, many, context)
    if not begun:
        begun.append(True)
        Scene.objects.create(kind="report", key="new")
    return result

with connection.execute_wrapper(begin_another):
    shown = json.loads(state(RequestFactory().get("/")).content)
print([entry["key"] for entry in shown["history"]], shown["scene"]["key"])
"""


def test_the_page_shows_the_newest_scene_of_its_history_although_another_one_begins(environment):
    done = subprocess.run(
        [sys.executable, "-c", A_SCENE_BEGINS_MEANWHILE],
        cwd=ROOT,
        env={**environment, "EXAMPLE_DATABASE": ":memory:"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.stdout == "['old'] old\n", done.stderr


@pytest.mark.parametrize(
    "command", [["check", "--fail-level", "WARNING"], ["makemigrations", "--check", "--dry-run"]]
)
def test_django_checks_pass(environment, command):
    run = subprocess.run(
        [sys.executable, "example_project/manage.py", *command],
        cwd=ROOT,
        env={**environment, "EXAMPLE_DATABASE": ":memory:"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert run.returncode == 0, run.stdout
