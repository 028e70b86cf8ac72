"""The admin page: what it shows and to whom, what it costs, and what it refuses."""

from __future__ import annotations

import re
import time
from html import unescape

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from testsite.hashes import shown_hash
from testsite.visits import FIND, LIST, RELEASE, holder_of, message_after, page, post, rows, visitor

from syncguard import LockError
from syncguard.redis import RedisBackend
from syncguard_django import locks

pytestmark = pytest.mark.django_db


# The list


@pytest.mark.usefixtures("backend")
def test_the_admin_index_has_a_section_syncguard_with_locks(viewer):
    index = viewer.get("/admin/").content.decode()
    assert "SyncGuard" in index
    assert f'href="{LIST}"' in index
    assert "<h1>Locks</h1>" in page(viewer)


def test_a_live_lock_is_shown_sanitized(backend, viewer):
    with backend.acquire("invoice:42", ttl_ms=3_700_000, holder="worker-7") as held:
        html = page(viewer)
    assert shown_hash("invoice:42") in html
    assert "worker-7" in html
    assert re.search(r'data-syncguard-remaining-ms="3(6[6-9]|70)\d{4}">1 h 1 min<', html)
    assert re.search(r'data-syncguard-held-ms="\d+">', html)
    assert "invoice:42" not in html
    assert held.lock_id not in html


def test_a_holder_is_text_and_not_markup(backend, viewer):
    backend.acquire("a", ttl_ms=60_000, holder="<script>alert(1)</script>")
    assert b"<script>alert" not in viewer.get(LIST).content


@pytest.mark.usefixtures("backend")
def test_without_locks_the_page_says_so(viewer):
    html = page(viewer)
    assert "No locks are held right now." in html
    assert "Locks that clients in other programming languages acquired are not in this list" in html


def test_after_a_search_without_result_the_page_says_so(backend, viewer):
    backend.acquire("a", ttl_ms=60_000)
    assert "No live lock matches." in page(viewer, q="zzz")


def test_the_page_reports_a_dead_redis(settings, viewer):
    settings.SYNCGUARD = {"default": {"LOCATION": "redis://:hunter2@127.0.0.1:1/0"}}
    html = page(viewer)
    assert "Some locks cannot be shown" in html
    assert "ServiceUnavailable" in html
    assert "No locks are held" not in html
    assert "hunter2" not in html


@pytest.mark.usefixtures("impatient_inspector", "backend")
def test_with_a_hanging_redis_the_page_loads_within_seconds(viewer, syncguard_redis):
    started = time.monotonic()
    with syncguard_redis.paused():
        assert "NetworkTimeout" in page(viewer)
    assert time.monotonic() - started < 30  # the default time-out of redis-py is a minute


def test_a_dead_redis_does_not_hide_the_locks_of_another(settings, syncguard_redis, viewer):
    settings.SYNCGUARD = {
        "dead": {"LOCATION": "redis://127.0.0.1:1/0"},
        "live": {"LOCATION": syncguard_redis.url},
    }
    locks["live"].acquire("a", ttl_ms=60_000)
    assert "Some locks cannot be shown" in page(viewer)
    assert rows(viewer) == [shown_hash("a")]


def test_the_page_reports_an_invalid_setting(settings, viewer):
    settings.SYNCGUARD = {"default": {"LOCATION": "redis://", "BACKEND": "nowhere.Backend"}}
    assert "ImproperlyConfigured" in page(viewer)


def test_the_soonest_to_expire_comes_first(backend, viewer):
    for minutes in (30, 10, 20):
        backend.acquire(f"{minutes}", ttl_ms=minutes * 60_000)
    assert rows(viewer) == [shown_hash("10"), shown_hash("20"), shown_hash("30")]


@pytest.mark.parametrize(
    ("column", "ascending"),
    [
        (0, sorted(["a", "b", "c"], key=shown_hash)),
        (1, ["b", "c", "a"]),
        (2, ["a", "c", "b"]),
        (3, ["b", "a", "c"]),
        (4, ["c", "a", "b"]),
    ],
)
def test_every_column_sorts_both_ways(backend, viewer, column, ascending):
    # Acquired in the order c, a, b; expiring in the order a, c, b; held by 3, 1, 2.
    for key, ttl_ms, holder, fences in (
        ("c", 600_000, "h2", 1),
        ("a", 500_000, "h3", 2),
        ("b", 700_000, "h1", 3),
    ):
        for _ in range(fences - 1):
            backend.acquire(key, ttl_ms=60_000).release()
        backend.acquire(key, ttl_ms=ttl_ms, holder=holder)
        time.sleep(0.002)
    hashes = list(map(shown_hash, ascending))
    assert rows(viewer, o=str(column)) == hashes
    assert rows(viewer, o=f"-{column}") == hashes[::-1]


def test_a_search_finds_the_beginning_of_a_hash_or_a_holder(backend, viewer):
    one = backend.acquire("one", ttl_ms=60_000, holder="Worker-A")
    backend.acquire("two", ttl_ms=60_000, holder="worker-b")
    assert rows(viewer, q=shown_hash("one")[:8]) == [shown_hash("one")]
    assert rows(viewer, q=shown_hash("one").upper()) == [shown_hash("one")]
    assert rows(viewer, q=shown_hash(one.lock_id)[:8]) == [shown_hash("one")]
    assert rows(viewer, q="worker-a") == [shown_hash("one")]
    assert len(rows(viewer, q="worker")) == 2


@pytest.mark.usefixtures("two_aliases")
def test_the_locks_of_every_alias_are_shown_and_can_be_filtered(viewer):
    locks["one"].acquire("a", ttl_ms=60_000)
    locks["two"].acquire("b", ttl_ms=50_000)
    assert rows(viewer) == [shown_hash("b"), shown_hash("a")]
    assert rows(viewer, using="one") == [shown_hash("a")]
    assert rows(viewer, using="one", q=shown_hash("b")) == []
    assert 'href="?using=two"' in page(viewer)


def test_one_alias_needs_no_filter(backend, viewer):
    backend.acquire("a", ttl_ms=60_000)
    assert "changelist-filter" not in page(viewer)
    assert rows(viewer, using="default") == [shown_hash("a")]
    assert rows(viewer, using="nope") == [shown_hash("a")]


@pytest.mark.usefixtures("two_aliases")
def test_pages_of_several_aliases_are_merged(viewer):
    for number in range(130):
        using = "one" if number % 2 else "two"
        locks[using].acquire(f"k{number}", ttl_ms=60_000 + number * 100)
    wanted = [shown_hash(f"k{number}") for number in range(130)]
    assert rows(viewer) == wanted[:100]
    assert rows(viewer, p=2) == wanted[100:]


def test_a_page_number_that_no_longer_exists_shows_the_last_page(backend, viewer):
    backend.acquire("a", ttl_ms=60_000)
    for parameter in ("7", "-1", "x"):
        assert rows(viewer, p=parameter) == [shown_hash("a")]
    assert rows(viewer, p=7, q=shown_hash("a")) == [shown_hash("a")]


def test_the_list_sends_no_query_for_locks(backend, viewer):
    backend.acquire("a", ttl_ms=60_000)
    page(viewer)
    with CaptureQueriesContext(connection) as queries:
        page(viewer, q="a", o="3")
    assert not [q for q in queries if "syncguard_django_lock" in q["sql"].lower()]


# 10,000 live locks


def spent_by(server, act):
    act()  # loads the scripts and opens the connection
    before = server.commands_processed()
    act()
    after = server.commands_processed()
    return {name: after[name] - before.get(name, 0) for name in after}


@pytest.mark.parametrize(
    ("parameters", "commands"),
    [({}, 20), ({"p": "100"}, 20), ({"o": "2"}, 100), ({"q": "w-77"}, 100)],
    ids=["first page", "last page", "sorted", "searched"],
)
@pytest.mark.slow
def test_the_page_is_cheap_with_10000_locks(many_locks, viewer, parameters, commands):
    spent = spent_by(many_locks, lambda: page(viewer, **parameters))
    assert sum(spent.values()) <= commands, spent
    assert not spent.get("scan")
    assert not spent.get("keys")


@pytest.mark.slow
@pytest.mark.usefixtures("many_locks")
def test_10000_locks_are_shown_100_per_page(viewer):
    assert len(rows(viewer)) == 100
    assert rows(viewer, p=100)[-1] == shown_hash("invoice:9999")
    assert len(rows(viewer, q="w-77")) == 100
    assert "10000 total" in page(viewer, q="w-77")


@pytest.mark.slow
@pytest.mark.usefixtures("many_locks")
def test_the_page_says_that_it_read_only_a_part_of_the_locks(viewer, monkeypatch):
    monkeypatch.setattr("syncguard_django.live_locks.LISTED_AT_MOST", 500)
    assert "Only the 500 that expire soonest were sorted and searched" in page(viewer, o="3")


# Permissions


@pytest.mark.usefixtures("backend")
def test_an_anonymous_visitor_is_redirected_to_the_login():
    for url in (LIST, FIND, RELEASE):
        response = Client().get(url)
        assert response.status_code == 302
        assert "/admin/login/" in response["Location"]


def test_staff_without_permission_get_403_everywhere(backend):
    held = backend.acquire("a", ttl_ms=60_000)
    info = backend.lookup(key="a")
    client = visitor()
    assert client.get(LIST).status_code == 403
    client.get("/admin/password_change/")
    token = client.cookies["csrftoken"].value
    for url, data in ((FIND, {"key": "a", "using": "default"}), (RELEASE, holder_of(info))):
        assert client.post(url, {**data, "csrfmiddlewaretoken": token}).status_code == 403
    assert backend.extend(held.lock_id).ok
    assert "SyncGuard" not in client.get("/admin/").content.decode()


def test_the_view_permission_does_not_allow_releasing(backend, viewer):
    backend.acquire("a", ttl_ms=60_000)
    info = backend.lookup(key="a")
    assert "Release…" not in page(viewer)
    assert viewer.get(RELEASE, holder_of(info)).status_code == 403
    assert post(viewer, RELEASE, **holder_of(info)).status_code == 403
    assert backend.is_locked("a")


def test_releasing_needs_the_view_permission_too(backend):
    backend.acquire("a", ttl_ms=60_000)
    client = visitor("release_lock")
    assert client.get(LIST).status_code == 403
    assert client.get(RELEASE, holder_of(backend.lookup(key="a"))).status_code == 403
    assert "SyncGuard" not in client.get("/admin/").content.decode()


def test_the_permissions_are_view_release_and_view_key():
    codenames = Permission.objects.filter(content_type__app_label="syncguard_django")
    assert set(codenames.values_list("codename", flat=True)) == {
        "view_lock",
        "release_lock",
        "view_lock_key",
    }


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("path", ["add/", "x/", "x/change/", "x/delete/", "x/history/", "1/"])
def test_locks_cannot_be_added_changed_or_deleted(admin_client, path):
    assert admin_client.get(f"{LIST}{path}").status_code == 404


# Find by key


def test_a_raw_key_is_found_and_is_never_in_an_address(backend, viewer):
    backend.acquire("invoice:42", ttl_ms=60_000, holder="me")
    backend.acquire("invoice:43", ttl_ms=60_000)
    response = post(viewer, FIND, key="invoice:42", using="default")
    assert response.status_code == 302
    assert response["Location"] == f"{LIST}?using=default&q={shown_hash('invoice:42')}"
    html = unescape(viewer.get(response["Location"]).content.decode())
    assert shown_hash("invoice:42") in html
    assert shown_hash("invoice:43") not in html
    assert "held: fence 1, holder me" in html
    assert "invoice:42" not in html


@pytest.mark.usefixtures("backend")
def test_for_a_free_key_the_page_shows_its_hash(viewer):
    response = post(viewer, FIND, key="invoice:42", using="default")
    text = message_after(viewer, response)
    assert text == f"Nobody holds the lock of that key. Its hash is {shown_hash('invoice:42')}."


@pytest.mark.usefixtures("backend")
def test_a_lock_of_another_language_is_found_by_its_key(viewer, syncguard_redis):
    with syncguard_redis.client() as client, RedisBackend(client, key_prefix="testsite") as unnamed:
        unnamed.acquire("invoice:42", ttl_ms=60_000)
        for name in client.keys("*live*"):
            client.delete(name)
    response = post(viewer, FIND, key="invoice:42", using="default")
    assert "held: fence 1, holder not named" in message_after(viewer, response)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("data", [{"using": "default"}, {}, {"key": "a", "using": "x"}])
def test_an_incomplete_find_form_shows_a_message(viewer, data):
    assert message_after(viewer, post(viewer, FIND, **data)) == "Choose an alias and type a key."


@pytest.mark.usefixtures("backend")
def test_an_invalid_key_shows_a_message_without_the_key(viewer):
    text = message_after(viewer, post(viewer, FIND, key="fence:hunter2", using="default"))
    assert text.startswith("Alias default: InvalidArgument:")
    assert "hunter2" not in text


@pytest.mark.usefixtures("backend")
def test_find_takes_only_a_post_with_a_token(viewer):
    assert viewer.get(FIND, {"key": "a"}).status_code == 405
    assert viewer.post(FIND, {"key": "a", "using": "default"}).status_code == 403


@pytest.mark.usefixtures("two_aliases")
def test_with_several_aliases_one_is_chosen(viewer):
    locks["two"].acquire("a", ttl_ms=60_000)
    assert '<select name="using"' in page(viewer)
    assert "Nobody holds" in message_after(viewer, post(viewer, FIND, key="a", using="one"))
    assert "is held" in message_after(viewer, post(viewer, FIND, key="a", using="two"))


# Force-release


def test_releasing_needs_a_confirmation_that_shows_the_holder(backend, releaser):
    held = backend.acquire("invoice:42", ttl_ms=60_000, holder="worker-7")
    info = backend.lookup(key="invoice:42")
    html = page(releaser)
    [link] = re.findall(r'href="([^"]+)">Release…', html)
    asked = unescape(releaser.get(link).content.decode())
    for shown in (info.key_hash, info.fence, info.lock_id_hash, "worker-7"):
        assert shown in asked
    assert "csrfmiddlewaretoken" in asked
    assert "invoice:42" not in asked
    assert held.lock_id not in asked
    assert backend.is_locked("invoice:42")


def test_a_lock_is_released_after_the_confirmation_and_logged(backend, releaser):
    backend.acquire("invoice:42", ttl_ms=60_000)
    info = backend.lookup(key="invoice:42")
    response = post(releaser, RELEASE, **holder_of(info))
    assert not backend.is_locked("invoice:42")
    text = message_after(releaser, response)
    assert text == f"Released the lock {info.key_hash} (fence 1)."
    entry = LogEntry.objects.get()
    assert entry.user.username == "ann"
    assert entry.object_repr == f"Released: {info.key_hash} (fence 1)"
    assert entry.change_message == (
        f"Force-released: fence 1, lock-id hash {info.lock_id_hash}, alias default."
    )
    assert entry.get_admin_url() is None
    recent = releaser.get("/admin/").content.decode().partition("Recent actions")[2]
    assert f"Released: {info.key_hash} (fence 1)" in recent


def test_a_lock_beyond_the_search_limit_can_be_released(backend, releaser, monkeypatch):
    monkeypatch.setattr("syncguard_django.live_locks.LISTED_AT_MOST", 1)
    for number in range(3):
        backend.acquire(f"k{number}", ttl_ms=60_000 + number)
    assert releaser.get(RELEASE, holder_of(backend.lookup(key="k2"))).status_code == 200
    post(releaser, RELEASE, **holder_of(backend.lookup(key="k2")))
    assert not backend.is_locked("k2")


def test_a_stale_page_cannot_release_the_lock_of_a_new_holder(backend, releaser):
    backend.acquire("invoice:42", ttl_ms=60_000).release()
    old = backend.acquire("invoice:42", ttl_ms=60_000)
    seen = backend.lookup(key="invoice:42")
    old.release()
    backend.acquire("invoice:42", ttl_ms=60_000)
    text = message_after(releaser, post(releaser, RELEASE, **holder_of(seen)))
    assert text.startswith("Nothing was released: the holder that was shown")
    assert backend.is_locked("invoice:42")
    assert not LogEntry.objects.exists()


def test_if_the_holder_has_released_there_is_no_confirmation(backend, releaser):
    held = backend.acquire("invoice:42", ttl_ms=60_000)
    seen = backend.lookup(key="invoice:42")
    held.release()
    response = releaser.get(RELEASE, holder_of(seen))
    assert response.status_code == 302
    assert message_after(releaser, response).startswith("Nothing was released")


def test_if_the_holder_releases_at_the_last_moment_the_log_says_so(backend, releaser, monkeypatch):
    held = backend.acquire("invoice:42", ttl_ms=60_000)
    seen = backend.lookup(key="invoice:42")
    original = RedisBackend.release

    def release_first(self, lock_id):
        original(self, held.lock_id)
        return original(self, lock_id)

    monkeypatch.setattr(RedisBackend, "release", release_first)
    text = message_after(releaser, post(releaser, RELEASE, **holder_of(seen)))
    assert text.startswith("Nothing was released")
    entry = LogEntry.objects.get()
    assert entry.object_repr.startswith("Not released, no longer held: ")
    assert entry.change_message.startswith(
        "Tried to force-release; the holder no longer held it: fence 1,"
    )


def test_a_release_with_an_unknown_outcome_is_logged(backend, releaser, monkeypatch):
    backend.acquire("invoice:42", ttl_ms=60_000)
    seen = backend.lookup(key="invoice:42")

    def time_out(*_args, **_kwargs):
        raise LockError("NetworkTimeout")

    monkeypatch.setattr(RedisBackend, "release", time_out)
    text = message_after(releaser, post(releaser, RELEASE, **holder_of(seen)))
    assert text.startswith("Alias default: NetworkTimeout")
    assert "Tried to force-release (NetworkTimeout)" in LogEntry.objects.get().change_message


def test_a_release_needs_a_token(backend, releaser):
    backend.acquire("invoice:42", ttl_ms=60_000)
    info = backend.lookup(key="invoice:42")
    assert releaser.post(RELEASE, holder_of(info)).status_code == 403
    assert backend.is_locked("invoice:42")


def test_no_other_method_releases(backend, releaser):
    backend.acquire("invoice:42", ttl_ms=60_000)
    info = backend.lookup(key="invoice:42")
    assert releaser.get(RELEASE, holder_of(info)).status_code == 200
    assert releaser.head(RELEASE, holder_of(info)).status_code == 200
    releaser.handler.enforce_csrf_checks = False
    assert releaser.put(RELEASE).status_code == 405
    assert backend.is_locked("invoice:42")


def test_parameters_that_identify_no_holder_are_404(backend, releaser):
    backend.acquire("invoice:42", ttl_ms=60_000)
    whole = holder_of(backend.lookup(key="invoice:42"))
    for name in whole:
        assert releaser.get(RELEASE, {**whole, name: ""}).status_code == 404
    assert releaser.get(RELEASE, {**whole, "using": "nope"}).status_code == 404


def test_releasing_on_a_dead_redis_shows_an_error(backend, releaser, syncguard_redis):
    backend.acquire("invoice:42", ttl_ms=60_000)
    info = backend.lookup(key="invoice:42")
    releaser.get(LIST)
    syncguard_redis.kill()
    token = releaser.cookies["csrftoken"].value
    response = releaser.post(RELEASE, {**holder_of(info), "csrfmiddlewaretoken": token})
    assert message_after(releaser, response).startswith("Alias default: ServiceUnavailable")


def test_a_force_release_sends_a_signal_if_telemetry_is_on(configure, releaser, received):
    configure(TELEMETRY=True)
    locks["default"].acquire("invoice:42", ttl_ms=60_000)
    info = locks["default"].lookup(key="invoice:42")
    post(releaser, RELEASE, **holder_of(info))
    assert [name for name, _ in received] == ["acquired", "released"]
