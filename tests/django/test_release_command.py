"""``manage.py syncguard_release``: what it releases, what it asks, and what it logs."""

from __future__ import annotations

import builtins
import getpass
import io
import logging

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import override_settings

from syncguard.redis import RedisBackend
from syncguard_django import locks
from syncguard_django.management.commands.syncguard_release import Command

pytestmark = pytest.mark.django_db

KEY = "patient:Eve:diagnosis"


class Result:
    def __init__(self, out, err, code):
        self.out, self.err, self.code = out, err, code


def run(*arguments):
    out, err, code = io.StringIO(), io.StringIO(), 0
    try:
        call_command("syncguard_release", *arguments, stdout=out, stderr=err)
    except SystemExit as ended:
        code = ended.code
    except CommandError as error:
        code = error.returncode
        err.write(str(error))
    return Result(out.getvalue(), err.getvalue(), code)


@pytest.fixture
def answer(monkeypatch):
    """Answers the question, and counts how often it was asked."""
    asked = []

    def set_answer(text):
        def reply(prompt):
            asked.append(prompt)
            if text is None:
                raise EOFError
            return text

        monkeypatch.setattr(builtins, "input", reply)
        return asked

    return set_answer


@pytest.fixture
def ann():
    return User.objects.create_user("ann", is_staff=True)


def test_a_lock_is_released_by_its_key(backend):
    held = backend.acquire(KEY, ttl_ms=60_000, holder="ward-3")
    result = run("--key", KEY, "--no-input")
    assert result.code == 0
    assert result.out.endswith("Released.\n")
    assert not backend.is_locked(KEY)
    assert "ward-3" in result.out
    for secret in (KEY, "Eve", held.lock_id):
        assert secret not in result.out + result.err


@pytest.mark.parametrize("length", [8, 12, 24])
def test_a_lock_is_released_by_its_hash_or_the_beginning_of_it(backend, length):
    backend.acquire("demo:1", ttl_ms=60_000)
    backend.acquire("demo:2", ttl_ms=60_000)
    assert run(backend.hash("demo:2")[:length].upper(), "--no-input").code == 0
    assert backend.is_locked("demo:1")
    assert not backend.is_locked("demo:2")


def test_a_hash_from_before_the_secret_key_changed_is_accepted(backend):
    backend.acquire("demo:1", ttl_ms=60_000)
    old = backend.hash("demo:1")
    with override_settings(SECRET_KEY="new", SECRET_KEY_FALLBACKS=["older", "only-for-tests"]):
        assert locks["default"].hash("demo:1") != old
        assert run(old, "--no-input").code == 0
        assert not locks["default"].is_locked("demo:1")


@pytest.mark.parametrize("text", ["y", " YES "])
def test_it_asks_for_confirmation_and_yes_releases(backend, answer, text):
    backend.acquire("a", ttl_ms=60_000)
    asked = answer(text)
    assert run("--key", "a").code == 0
    assert asked == ["Release it? [y/N] "]
    assert not backend.is_locked("a")


@pytest.mark.parametrize("text", ["", "n", "nope", None])
def test_any_answer_but_yes_releases_nothing(backend, answer, text):
    backend.acquire("a", ttl_ms=60_000)
    answer(text)
    result = run("--key", "a")
    assert result.code == 1
    assert result.out.endswith("Nothing was released.\n")
    assert backend.is_locked("a")
    assert not LogEntry.objects.exists()


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("arguments", [("--key", "a"), ("0123456789abcdef",)])
def test_a_free_lock_exits_with_1(arguments):
    result = run(*arguments)
    assert (result.code, result.out) == (1, "Not locked: nothing to release.\n")


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("text", ["0123456", "xyzxyzxyz", "0" * 25])
def test_an_invalid_hash_exits_with_2(text):
    result = run(text)
    assert result.code == 2
    assert "at least the first 8" in result.err


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("arguments", [(), ("--key", "a", "0123456789abcdef")])
def test_either_a_key_or_a_hash_is_needed(arguments):
    with pytest.raises(CommandError):
        call_command("syncguard_release", *arguments)


def test_a_dead_redis_exits_with_2(settings):
    settings.SYNCGUARD = {"default": {"LOCATION": "redis://:hunter2@127.0.0.1:1/0"}}
    result = run("--key", "a", "--no-input")
    assert result.code == 2
    assert result.err.startswith("default: ServiceUnavailable: Redis at 127.0.0.1:1, database 0,")
    assert "hunter2" not in result.err


@pytest.fixture
def two_aliases(settings, syncguard_redis):
    settings.SYNCGUARD = {
        name: {"LOCATION": syncguard_redis.url, "KEY_PREFIX": name} for name in ("one", "two")
    }


@pytest.mark.usefixtures("two_aliases")
def test_a_key_that_is_locked_in_two_aliases_needs_using():
    for name in ("one", "two"):
        locks[name].acquire("a", ttl_ms=60_000)
    result = run("--key", "a", "--no-input")
    assert result.code == 2
    assert "Several locks match: pass --using" in result.err
    assert run("--key", "a", "--using", "two", "--no-input").code == 0
    assert locks["one"].is_locked("a")
    assert not locks["two"].is_locked("a")
    assert run("--key", "a", "--using", "three").code == 2


@pytest.mark.usefixtures("backend")
def test_a_key_may_begin_with_a_dash():
    locks["default"].acquire("--x", ttl_ms=60_000)
    Command().run_from_argv(["manage.py", "syncguard_release", "--key", "--x", "--no-input"])
    assert not locks["default"].is_locked("--x")


# The audit


def test_the_admins_log_names_the_account(backend, ann):
    backend.acquire("a", ttl_ms=60_000)
    info = backend.lookup(key="a")
    result = run("--key", "a", "--no-input", "--user", "ann")
    entry = LogEntry.objects.get()
    assert entry.user == ann
    assert entry.object_repr == f"Released: {info.key_hash} (fence 1)"
    assert entry.change_message == (
        f"Force-released: fence 1, lock-id hash {info.lock_id_hash}, alias default."
    )
    assert result.err == ""


def test_the_account_with_the_name_of_the_login_is_the_default(backend, monkeypatch, ann):
    monkeypatch.setattr(getpass, "getuser", lambda: "ann")
    backend.acquire("a", ttl_ms=60_000)
    run("--key", "a", "--no-input")
    assert LogEntry.objects.get().user == ann


def test_without_an_account_only_the_log_file_has_an_entry_and_the_command_says_so(backend, caplog):
    backend.acquire("a", ttl_ms=60_000)
    with caplog.at_level(logging.WARNING, "syncguard.audit"):
        result = run("--key", "a", "--no-input")
    assert result.code == 0
    assert "pass an account with --user" in result.err
    begun, released = caplog.messages
    assert begun.startswith(f"force-release of {backend.hash('a')} (fence 000000000000001, alias")
    assert begun.endswith(": begun")
    assert released.endswith(": released")
    assert f"by {getpass.getuser()}@" in released


def test_an_account_that_does_not_exist_releases_nothing(backend):
    backend.acquire("a", ttl_ms=60_000)
    result = run("--key", "a", "--no-input", "--user", "nobody")
    assert result.code == 2
    assert backend.is_locked("a")


@pytest.mark.usefixtures("ann")
def test_a_holder_that_releases_at_the_last_moment_exits_with_1(backend, monkeypatch):
    held = backend.acquire("a", ttl_ms=60_000)
    original = RedisBackend.release

    def release_first(self, lock_id):
        original(self, held.lock_id)
        return original(self, lock_id)

    monkeypatch.setattr(RedisBackend, "release", release_first)
    result = run("--key", "a", "--no-input", "--user", "ann")
    assert result.code == 1
    assert "no longer holds the lock" in result.out
    assert LogEntry.objects.get().object_repr.startswith("Not released")


@pytest.mark.usefixtures("impatient_inspector", "ann")
def test_a_redis_that_hangs_during_the_release_exits_with_2(backend, monkeypatch, syncguard_redis):
    backend.acquire("a", ttl_ms=60_000)
    original = RedisBackend.release

    def hang(self, lock_id):
        with syncguard_redis.paused():
            return original(self, lock_id)

    monkeypatch.setattr(RedisBackend, "release", hang)
    result = run("--key", "a", "--no-input", "--user", "ann")
    assert result.code == 2
    assert "The lock may have been released" in result.err
    assert LogEntry.objects.get().object_repr.startswith("Perhaps released (NetworkTimeout)")
