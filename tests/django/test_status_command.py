"""``manage.py syncguard_status``: what it shows, in which format, and its exit codes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from testsite.hashes import shown_hash

from syncguard import format_fence, hash_key, keyed_hash
from syncguard.testing import RedisServer
from syncguard_django import locks
from syncguard_django.durations import for_people
from syncguard_django.management.commands.syncguard_status import Command

HERE = Path(__file__).parent


class Result:
    def __init__(self, out, err, code):
        self.out, self.err, self.code = out, err, code


def run(*arguments):
    out, err = io.StringIO(), io.StringIO()
    code = 0
    try:
        call_command("syncguard_status", *arguments, stdout=out, stderr=err)
    except SystemExit as ended:
        code = ended.code
    return Result(out.getvalue(), err.getvalue(), code)


def run_json(*arguments):
    return json.loads(run("--format", "json", *arguments).out)


@pytest.fixture
def two_aliases(settings, syncguard_redis):
    settings.SYNCGUARD = {
        name: {"LOCATION": syncguard_redis.url, "KEY_PREFIX": name} for name in ("one", "two")
    }


@pytest.mark.usefixtures("backend")
def test_without_locks_it_prints_no_live_locks():
    assert run().out == "No live locks.\n"


def test_live_locks_are_an_aligned_table(backend):
    with backend.acquire("invoice:42", ttl_ms=3_700_000, holder="worker-7") as one:
        with backend.acquire("invoice:43", ttl_ms=90_000_000):
            lines = run().out.splitlines()
    assert re.split(r"\s{2,}", lines[0]) == [
        "KEY HASH",
        "HOLDER",
        "FENCE",
        "ACQUIRED",
        "EXPIRES IN",
        "LOCK-ID HASH",
    ]
    first, second = (re.split(r"\s{2,}", line) for line in lines[1:])
    assert first[:3] == [shown_hash("invoice:42"), "worker-7", format_fence(1)]
    assert re.fullmatch(r"(under 1 s|\d+ s|\d+ min \d+ s) ago", first[3])
    assert first[4] == "1 h 1 min"
    assert first[5] == shown_hash(one.lock_id)
    assert second[1].endswith(
        f"test_live_locks_are_an_aligned_table(pid {os.getpid()})@{socket.gethostname()}"
    )
    assert second[4] in ("1 d 0 h", "1 d 1 h")
    starts = [[match.start() for match in re.finditer(r"(?<=\s\s)\S", line)] for line in lines]
    assert starts[0] == starts[1] == starts[2]


def test_above_the_limit_the_total_number_is_printed(backend):
    for number in range(5):
        backend.acquire(f"invoice:{number}", ttl_ms=60_000 + number)
    lines = run("--limit", "2").out.splitlines()
    assert len(lines) == 4
    assert lines[-1] == "2 of 5 live locks, soonest to expire first."
    assert lines[1].startswith(shown_hash("invoice:0"))


@pytest.mark.usefixtures("two_aliases")
def test_several_aliases_are_shown_with_their_names():
    with locks["one"].acquire("a", ttl_ms=60_000), locks["two"].acquire("b", ttl_ms=50_000):
        lines = run().out.splitlines()
        only = run("--using", "two").out.splitlines()
    assert [line.split()[0] for line in lines] == ["ALIAS", "two", "one"]
    assert only[0].startswith("KEY HASH")
    assert len(only) == 2


@pytest.mark.usefixtures("backend")
def test_an_unknown_alias_is_an_error():
    with pytest.raises(CommandError, match="no such alias; it has default"):
        run("--using", "other")


def test_json_has_the_names_of_the_specification_and_milliseconds(backend):
    began = time.monotonic()
    with backend.acquire("invoice:42", ttl_ms=3_600_000, holder="me") as held:
        [row] = run_json()
    assert row["expiresAtMs"] == held.expires_at_ms
    assert 0 <= row["heldMs"] < 5_000 + (time.monotonic() - began) * 1000
    assert row["heldMs"] + row["expiresInMs"] == 3_600_000
    assert {name: row[name] for name in ("alias", "keyHash", "lockIdHash", "holder", "fence")} == {
        "alias": "default",
        "keyHash": shown_hash("invoice:42"),
        "lockIdHash": shown_hash(held.lock_id),
        "holder": "me",
        "fence": format_fence(1),
    }


def test_ndjson_is_one_object_per_line(backend):
    assert run("--format", "ndjson").out == ""
    backend.acquire("a", ttl_ms=60_000)
    backend.acquire("b", ttl_ms=60_000)
    lines = run("--format", "ndjson").out.splitlines()
    assert {json.loads(line)["keyHash"] for line in lines} == {shown_hash("a"), shown_hash("b")}


def test_a_key_is_looked_up_raw_and_shown_sanitized(backend):
    with backend.acquire("invoice:42", ttl_ms=60_000):
        backend.acquire("invoice:43", ttl_ms=60_000)
        found = run("--key", "invoice:42").out
    assert shown_hash("invoice:42") in found
    assert shown_hash("invoice:43") not in found
    assert "invoice" not in found
    assert run("--key", "invoice:42").out.startswith("Not locked.\n")
    assert run_json("--key", "invoice:42") == []


def test_a_key_is_shown_with_both_of_its_hashes(backend):
    """The hash of this site, and the hash of the specification."""
    backend.acquire("invoice:42", ttl_ms=60_000)
    for key in ("invoice:42", "free"):
        lines = run("--key", key).out.splitlines()[-2:]
        assert [re.split(r"\s{2,}", line) for line in lines] == [
            ["key hash", shown_hash(key)],
            ["specification's hash", hash_key(key)],
        ]
    [row] = run_json("--key", "invoice:42")
    assert row["keyHash"] == shown_hash("invoice:42")
    assert row["specKeyHash"] == hash_key("invoice:42")
    assert hash_key("invoice:42") not in run().out


@pytest.mark.usefixtures("two_aliases")
def test_with_different_hash_secrets_each_alias_shows_its_own_hash(settings):
    settings.SYNCGUARD = {
        name: {**entry, "HASH_SECRET": name} for name, entry in settings.SYNCGUARD.items()
    }
    lines = run("--key", "a").out.splitlines()[-3:]
    assert [re.split(r"\s{2,}", line) for line in lines] == [
        ["key hash, one", keyed_hash(b"one", "a")],
        ["key hash, two", keyed_hash(b"two", "a")],
        ["specification's hash", hash_key("a")],
    ]


@pytest.mark.parametrize("form", ["table", "json", "ndjson"])
def test_a_lookup_exits_with_0_if_locked_and_with_1_if_free(backend, form):
    held = backend.acquire("invoice:42", ttl_ms=60_000)
    assert run("--key", "invoice:42", "--format", form).code == 0
    assert run("--lock-id", held.lock_id, "--format", form).code == 0
    held.release()
    assert run("--key", "invoice:42", "--format", form).code == 1
    assert run("--lock-id", held.lock_id, "--format", form).code == 1


@pytest.mark.usefixtures("two_aliases")
def test_a_key_is_free_if_no_alias_holds_it():
    assert run("--key", "a").code == 1
    locks["two"].acquire("a", ttl_ms=60_000)
    assert run("--key", "a").code == 0
    assert run("--key", "a", "--using", "one").code == 1


def test_a_lookup_exits_with_2_if_the_state_is_unknown(settings, syncguard_redis):
    settings.SYNCGUARD = {"default": {"LOCATION": "redis://127.0.0.1:1/0"}}
    assert run("--key", "a").code == 2
    settings.SYNCGUARD = {"default": {"LOCATION": syncguard_redis.url}}
    assert run("--key", "").code == 2
    with pytest.raises(CommandError) as raised:
        run("--key", "a", "--using", "other")
    assert raised.value.returncode == 2


def test_an_invalid_setting_does_not_exit_like_a_free_lock():
    process = program(
        "not-an-address", "--key", "a", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert b"syncguard.E003" in err


def test_a_lock_id_is_looked_up_raw_and_shown_sanitized(backend):
    held = backend.acquire("invoice:42", ttl_ms=60_000)
    found = run("--lock-id", held.lock_id).out
    assert shown_hash(held.lock_id) in found
    assert held.lock_id not in found


@pytest.mark.usefixtures("backend")
def test_an_id_or_a_key_that_begins_with_a_dash_is_not_read_as_an_option(capsys):
    """One lock id in 64 begins with a dash."""
    locks["default"].acquire("--key", ttl_ms=60_000, holder="me")
    for arguments in (("--key", "--key"), ("--lock-id", "-" * 22)):
        with contextlib.suppress(SystemExit):
            Command().run_from_argv(["manage.py", "syncguard_status", *arguments])
    typed = capsys.readouterr()
    assert "me" in typed.out
    assert typed.err == ""
    assert "me" in run("--key", "--key").out
    assert run("--lock-id", "-" * 22).out == "Not locked.\n"


@pytest.mark.usefixtures("backend")
def test_a_malformed_lock_id_prints_a_one_line_error():
    result = run("--lock-id", "short")
    assert result.code == 2
    assert result.err.startswith("default: InvalidArgument: a lock id has exactly 22 characters")
    assert len(result.err.splitlines()) == 1


def test_count_prints_only_the_number_of_locks(backend):
    backend.acquire("a", ttl_ms=60_000)
    assert run("--count").out == "1\n"
    assert run_json("--count") == [{"alias": "default", "liveLocks": 1}]


@pytest.mark.usefixtures("two_aliases")
def test_the_locks_of_each_alias_are_counted():
    locks["two"].acquire("a", ttl_ms=60_000)
    assert run("--count").out == "one: 0\ntwo: 1\n"


def test_control_characters_of_a_holder_are_not_printed(backend, syncguard_redis):
    backend.acquire("a", ttl_ms=60_000, holder="me")
    with syncguard_redis.client() as client:
        record = json.loads(client.get("testsite:a"))
        record["holder"] = "x\x1b[2Jy"
        client.set("testsite:a", json.dumps(record), keepttl=True)
    assert "x?[2Jy" in run().out


@pytest.mark.parametrize("text", ["0", "-1", "x"])
@pytest.mark.usefixtures("backend")
def test_a_limit_is_a_whole_number_above_0(text):
    with pytest.raises(CommandError, match="whole number above 0"):
        run(f"--limit={text}")


@pytest.mark.parametrize("text", ["0", "x", "nan"])
@pytest.mark.usefixtures("backend")
def test_watching_needs_a_sensible_interval(text):
    with pytest.raises(CommandError, match="number of seconds"):
        run(f"--watch={text}")


# The fields of the JSON, which programs rely on

KINDS = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list}
DOCUMENTED = HERE.parents[1] / "docs" / "reference" / "commands.md"


def schema(heading):
    """The fields of one kind of object on the page, with their allowed types."""
    if not DOCUMENTED.is_file():
        pytest.skip("needs a checkout")
    section = DOCUMENTED.read_text().split(f"#### {heading}\n")[1].split("\n#")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([\w ]+) \|", section, re.MULTILINE)
    return {name: types.split(" or ") for name, types in rows}


def assert_follows(item, fields):
    assert list(item) == list(fields)
    for name, types in fields.items():
        value = item[name]
        if value is None:
            assert "null" in types, name
        else:
            kinds = [KINDS[kind] for kind in types if kind != "null"]
            assert any(isinstance(value, kind) for kind in kinds), (name, value)
            assert not isinstance(value, bool) or "boolean" in types, (name, value)


@pytest.mark.parametrize("holder", ["me", None])
def test_a_lock_in_json_has_the_documented_fields(backend, holder):
    backend.acquire("a", ttl_ms=60_000, holder=holder)
    fields = schema("A lock")
    [looked_up] = run_json("--key", "a")
    assert_follows(looked_up, fields)
    del fields["specKeyHash"]
    [listed] = run_json()
    assert_follows(listed, fields)
    assert_follows(json.loads(run("--format", "ndjson").out), fields)


@pytest.mark.usefixtures("backend")
def test_a_count_in_json_has_the_documented_fields():
    [item] = run_json("--count")
    assert_follows(item, schema("A count"))


@pytest.mark.usefixtures("backend")
def test_a_report_in_json_has_the_documented_fields():
    [item] = run_json("--check")
    assert_follows(item, schema("A report"))


def test_a_report_of_a_redis_that_does_not_answer_has_the_documented_fields(settings):
    settings.SYNCGUARD = {"default": {"LOCATION": "redis://127.0.0.1:1/0"}}
    [item] = run_json("--check")
    assert list(item) == ["alias", "error"]
    assert_follows(
        {"alias": item["alias"], **item["error"]}, schema("A report of a Redis without an answer")
    )


# Redis is down


@pytest.mark.parametrize("arguments", [(), ("--count",), ("--key", "a"), ("--check",)])
def test_a_dead_redis_prints_one_line_with_the_alias_and_the_code(settings, arguments):
    settings.SYNCGUARD = {"default": {"LOCATION": "redis://:hunter2@127.0.0.1:1/0"}}
    result = run(*arguments)
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("default: ServiceUnavailable: ")
    assert len(result.err.splitlines()) == 1
    assert "hunter2" not in result.err


def test_a_wrong_password_prints_a_one_line_error(settings):
    with RedisServer(password="right") as server:
        settings.SYNCGUARD = {"default": {"LOCATION": server.url.replace("right", "hunter2")}}
        result = run("--check")
    assert result.code == 2
    assert result.err.startswith("default: AuthFailed: ")
    assert "hunter2" not in result.err + result.out


@pytest.mark.usefixtures("impatient_inspector", "backend")
def test_a_redis_that_does_not_answer_does_not_hang_the_command(syncguard_redis):
    started = time.monotonic()
    with syncguard_redis.paused():
        result = run()
    assert result.code == 2
    assert result.err.startswith("default: NetworkTimeout: ")
    assert time.monotonic() - started < 30  # the default time-out of redis-py is a minute


def test_the_locks_of_a_live_redis_are_shown_beside_a_dead_one(settings, syncguard_redis):
    settings.SYNCGUARD = {
        "dead": {"LOCATION": "redis://127.0.0.1:1/0"},
        "live": {"LOCATION": syncguard_redis.url},
    }
    locks["live"].acquire("a", ttl_ms=60_000)
    result = run()
    assert shown_hash("a") in result.out
    assert result.err.startswith("dead: ServiceUnavailable: ")
    assert result.code == 2


def test_an_alias_with_invalid_settings_prints_an_error(settings):
    settings.SYNCGUARD = {"default": {"LOCATION": "redis://", "BACKEND": "nowhere.Backend"}}
    result = run()
    assert result.code == 2
    assert result.err.startswith("default: ImproperlyConfigured: ")


# --check


def test_a_healthy_server_exits_with_0(settings):
    with RedisServer(aof=True) as server:
        settings.SYNCGUARD = {"default": {"LOCATION": server.url}}
        locks["default"].acquire("a", ttl_ms=60_000)
        result = run("--check")
        [report] = run_json("--check")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0] == "default: healthy"
    facts = dict(re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in lines[1:])
    assert re.fullmatch(r"Redis \d+\.\d+\.\d+, primary", facts["server"])
    assert facts["persistence"] == "AOF on, RDB off"
    assert facts["maxmemory-policy"] == "noeviction"
    assert (facts["live locks"], facts["fence counters"]) == ("1", "1")
    assert report["healthy"] is True
    assert report["findings"] == []
    assert (report["aof"], report["rdb"], report["role"]) == (True, False, "primary")
    assert report["roundTripMs"] >= 0
    assert abs(report["clockOffsetMs"]) < 1_000 + report["roundTripMs"]


def test_warnings_exit_with_1(settings):
    with RedisServer(config=["maxmemory-policy allkeys-lru"]) as server:
        settings.SYNCGUARD = {"default": {"LOCATION": server.url, "FENCE_FLOOR": None}}
        result = run("--check")
        [report] = run_json("--check")
    assert result.code == 1
    assert result.out.startswith("default: warnings\n")
    assert "maxmemory-policy is allkeys-lru, not noeviction" in result.out
    assert "nothing is written to disk" in result.out
    assert len(report["findings"]) == 2
    assert report["healthy"] is False


def test_an_unreachable_server_is_a_json_object_too(settings):
    settings.SYNCGUARD = {"default": {"LOCATION": "redis://127.0.0.1:1/0"}}
    [report] = run_json("--check")
    assert report["alias"] == "default"
    assert report["error"]["code"] == "ServiceUnavailable"


# As a program


def program(url, *arguments, **options):
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "testsite.settings",
        "PYTHONPATH": str(HERE),
        "SYNCGUARD_TEST_URL": url,
        "PYTHONUNBUFFERED": "1",
    }
    command = [sys.executable, "-m", "django", "syncguard_status", *arguments]
    return subprocess.Popen(command, env=environment, **options)


def read_until(descriptor, count, needle):
    seen = b""
    deadline = time.monotonic() + 60
    while seen.count(needle) < count:
        assert time.monotonic() < deadline, seen
        seen += os.read(descriptor, 65536)
    return seen


def test_in_a_pipe_there_are_no_colours(backend, syncguard_redis):
    backend.acquire("a", ttl_ms=60_000)
    process = program(syncguard_redis.url, stdout=subprocess.PIPE, text=True)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert shown_hash("a") in out
    assert "\x1b" not in out


@pytest.mark.usefixtures("backend")
def test_a_pipe_that_closes_early_is_no_error(syncguard_redis):
    process = program(
        syncguard_redis.url, "--watch", "0.1", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    read_until(process.stdout.fileno(), 1, b"No live locks")
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    assert process.stderr.read() == b""
    process.stderr.close()


def test_on_a_terminal_it_redraws_in_place_and_ctrl_c_exits_with_0(backend, syncguard_redis):
    backend.acquire("a", ttl_ms=60_000)
    ours, theirs = pty.openpty()
    process = program(
        syncguard_redis.url, "--watch", "0.1", stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    seen = read_until(ours, 3, b"\x1b[H")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 0
    os.close(ours)
    assert b"KEY HASH" in seen
    assert b"\x1b[J" in seen
    assert b"Traceback" not in seen


@pytest.mark.usefixtures("backend", "syncguard_redis")
def test_watching_continues_when_redis_dies():
    with RedisServer() as server:
        process = program(server.url, "--watch", "0.1", stdout=subprocess.PIPE)
        descriptor = process.stdout.fileno()
        read_until(descriptor, 1, b"No live locks")
        server.kill()
        read_until(descriptor, 2, b"ServiceUnavailable")
        server.restart()
        read_until(descriptor, 1, b"No live locks")
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(timeout=60) == 0
        process.stdout.close()


# Many locks


@pytest.mark.slow
def test_10000_locks_and_200000_fence_counters_cost_a_bounded_number_of_commands(many_locks):
    server = many_locks
    run("--limit", "100")
    before = server.commands_processed()
    result = run("--limit", "100")
    after = server.commands_processed()
    spent = {name: after[name] - before.get(name, 0) for name in after}
    assert "100 of 10,000 live locks" in result.out
    assert sum(spent.values()) <= 20, spent
    assert not spent.get("scan")
    assert not spent.get("keys")


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [((), {"evalsha": 1, "time": 1}), (("--check",), {"info": 1, "eval": 1})],
)
def test_a_listing_is_one_request_and_a_check_sends_each_command_once(
    syncguard_redis, arguments, expected
):
    run(*arguments)
    before = syncguard_redis.commands_processed()
    run(*arguments)
    after = syncguard_redis.commands_processed()
    assert {name: after[name] - before.get(name, 0) for name in expected} == expected
    assert ("evalsha" in expected) or after.get("evalsha", 0) == before.get("evalsha", 0)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (-5, "under 1 s"),
        (999, "under 1 s"),
        (1_000, "1 s"),
        (59_999, "59 s"),
        (60_000, "1 min 0 s"),
        (3_599_999, "59 min 59 s"),
        (3_600_000, "1 h 0 min"),
        (86_400_000 * 2 + 3_600_000 * 4, "2 d 4 h"),
    ],
)
def test_durations_have_at_most_two_units(ms, text):
    assert for_people(ms) == text
