"""Force-release: logged before the release, and only of the holder that was shown."""

from __future__ import annotations

import os
import threading

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import IntegrityError, connection, transaction
from django.test import Client, override_settings
from testsite.visits import RELEASE, holder_of, message_after

from syncguard.redis import RedisBackend
from syncguard_django import force_release, live_locks, locks
from syncguard_django.signals import lock_released

ROUNDS = int(os.environ.get("SYNCGUARD_TEST_ROUNDS", "20"))


@pytest.fixture
def root(db):  # noqa: ARG001 - accounts are in the database
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


@pytest.fixture
def at_the_release(monkeypatch):
    """The state of the database at the release: (in a transaction, rows, text)."""
    seen = []
    original = RedisBackend.release

    def release(self, lock_id):
        texts = list(LogEntry.objects.values_list("object_repr", flat=True))
        seen.append((connection.in_atomic_block, texts))
        return original(self, lock_id)

    monkeypatch.setattr(RedisBackend, "release", release)
    return seen


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("atomic_requests", [False, True])
def test_the_audit_is_committed_before_the_lock_is_released(
    backend, root, at_the_release, monkeypatch, atomic_requests
):
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", atomic_requests)
    backend.acquire("a", ttl_ms=60_000)
    info = backend.lookup(key="a")
    root.post(RELEASE, holder_of(info))
    assert at_the_release == [(False, [f"Release begun: {info.key_hash} (fence 1)"])]
    assert not backend.is_locked("a")
    assert LogEntry.objects.get().object_repr == f"Released: {info.key_hash} (fence 1)"


@pytest.mark.django_db(transaction=True)
def test_a_failed_commit_of_the_audit_releases_nothing(backend):
    """The database refuses the row only when it commits: its account does not exist."""
    backend.acquire("a", ttl_ms=60_000)
    holder = live_locks.lookup("default", key="a")
    with pytest.raises(IntegrityError):
        force_release.release(holder, force_release.Actor("nobody", 4711))
    assert backend.is_locked("a")
    assert not LogEntry.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("root")
def test_inside_of_a_transaction_nothing_is_released(backend):
    """The audit could not be committed before the release."""
    backend.acquire("a", ttl_ms=60_000)
    holder = live_locks.lookup("default", key="a")
    actor = force_release.Actor("root", User.objects.get().pk)
    with pytest.raises(RuntimeError, match="durable"), transaction.atomic():
        force_release.release(holder, actor)
    assert backend.is_locked("a")


@pytest.mark.parametrize("telemetry", [False, True])
def test_a_release_is_signalled_once_if_telemetry_is_on(configure, telemetry):
    configure(TELEMETRY=telemetry)
    locks["default"].acquire("a", ttl_ms=60_000)
    holder = live_locks.lookup("default", key="a")
    told, actor = [], force_release.Actor("operator", None)

    def receive(event, **_more):
        told.append(event.key_hash)

    lock_released.connect(receive)
    try:
        assert force_release.release(holder, actor) is True
        assert force_release.release(holder, actor) is False
    finally:
        lock_released.disconnect(receive)
    assert told == [holder.lock.info.key_hash] * telemetry


def test_a_page_from_before_the_secret_key_changed_still_releases(backend, root):
    backend.acquire("a", ttl_ms=60_000)
    seen = holder_of(backend.lookup(key="a"))
    with override_settings(SECRET_KEY="new", SECRET_KEY_FALLBACKS=["only-for-tests"]):
        root.force_login(User.objects.get())
        assert root.get(RELEASE, seen).status_code == 200
        root.post(RELEASE, seen)
        assert not locks["default"].is_locked("a")


def test_hashes_made_with_two_different_secrets_match_no_holder(backend, root):
    backend.acquire("a", ttl_ms=60_000)
    old = holder_of(backend.lookup(key="a"))
    with override_settings(SECRET_KEY="new", SECRET_KEY_FALLBACKS=["only-for-tests"]):
        root.force_login(User.objects.get())
        new = holder_of(locks["default"].lookup(key="a"))
        mixed = {**new, "key_hash": old["key_hash"]}
        assert message_after(root, root.post(RELEASE, mixed)).startswith("Nothing was released")
        assert locks["default"].is_locked("a")


def test_a_held_lock_is_found_while_others_are_acquired_and_released(
    backend, root, syncguard_redis
):
    for number in range(1_200):
        backend.acquire(f"still:{number}", ttl_ms=600_000 + number)
    held = backend.acquire("held", ttl_ms=600_500)
    seen = holder_of(backend.lookup(key="held"))
    stop = threading.Event()

    def churn():
        with RedisBackend.from_url(syncguard_redis.url, key_prefix="testsite") as other:
            while not stop.is_set():
                brief = [other.acquire(f"brief:{n}", 300_000) for n in range(100)]
                other.extend(held.lock_id, 600_500)
                for result in brief:
                    result.release()

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        answers = [root.get(RELEASE, seen).status_code for _ in range(ROUNDS)]
    finally:
        stop.set()
        thread.join()
    assert answers == [200] * ROUNDS


@pytest.mark.slow
def test_finding_one_of_10000_holders_takes_at_most_12_requests(many_locks, root):
    info = locks["default"].lookup(key="invoice:9999")
    root.get(RELEASE, holder_of(info))
    before = many_locks.commands_processed()
    assert root.get(RELEASE, holder_of(info)).status_code == 200
    after = many_locks.commands_processed()
    assert after["evalsha"] - before["evalsha"] <= 12
    assert not after.get("keys", 0) - before.get("keys", 0)
    assert not after.get("scan", 0) - before.get("scan", 0)
