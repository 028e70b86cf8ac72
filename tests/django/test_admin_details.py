"""The admin page as an operator uses it: finding, viewing keys, and returning to the list."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import parse_qs, urlsplit

import pytest
from django.test import override_settings
from testsite.hashes import shown_hash
from testsite.visits import FIND, LIST, RELEASE, holder_of, message_after, page, post, rows, visitor

from syncguard_django import locks

pytestmark = pytest.mark.django_db

KEY = "patient:Eve:diagnosis"


def headings(client):
    html = page(client).partition("<thead>")[2].partition("</thead>")[0]
    return re.findall(r'class="[^"]*column-(\w+)', html)


# Find by key


def fields_of_the_form(html):
    """What a browser would send: every field of the form with its value."""
    form = html.partition('<form class="syncguard-find"')[2].partition("</form>")[0]
    found = {}
    for tag in re.findall(r"<input[^>]*>", form):
        name, value = (re.search(rf'{a}="([^"]*)"', tag) for a in ("name", "value"))
        found[name[1]] = value[1] if value else ""
    return found


def test_with_one_alias_the_find_form_works_with_its_initial_values(backend, viewer):
    """The common case: the alias field is hidden, and must still have a value."""
    backend.acquire("invoice:42", ttl_ms=60_000)
    data = fields_of_the_form(page(viewer))
    response = viewer.post(FIND, {**data, "key": "invoice:42"})
    assert response["Location"] == f"{LIST}?using=default&q={shown_hash('invoice:42')}"
    assert rows(viewer, q=shown_hash("invoice:42")) == [shown_hash("invoice:42")]


@pytest.mark.usefixtures("two_aliases")
def test_the_find_form_selects_the_alias_of_the_filter(viewer):
    assert '<option value="two" selected>' in page(viewer, using="two")


@pytest.mark.usefixtures("backend")
def test_an_invalid_key_redirects_to_the_list_with_its_filters(viewer):
    action = re.search(r'<form class="syncguard-find"[^>]* action="([^"]+)"', page(viewer, o="3"))
    response = post(viewer, unescape(action[1]), key="fence:x")
    assert response["Location"] == f"{LIST}?o=3"


def test_a_hash_from_before_the_secret_key_changed_finds_its_lock(backend, viewer):
    backend.acquire("invoice:42", ttl_ms=60_000)
    backend.acquire("invoice:43", ttl_ms=60_000)
    old = backend.hash("invoice:42")
    with override_settings(SECRET_KEY="new", SECRET_KEY_FALLBACKS=["only-for-tests"]):
        viewer.force_login(viewer_of(viewer))
        assert rows(viewer, q=old[:10]) == [locks["default"].hash("invoice:42")]


def viewer_of(client):
    from django.contrib.auth import get_user

    class Request:
        session = client.session

    return get_user(Request)


# Columns


def test_the_expiry_is_beside_the_holder_and_the_lock_id_hash_is_not_in_the_list(backend, releaser):
    held = backend.acquire("a", ttl_ms=60_000)
    assert headings(releaser) == [
        *("key", "holder_label", "expires_in", "held_for", "number", "release_link")
    ]
    info = backend.lookup(key="a")
    without_links = re.sub(r'href="[^"]*"', "", page(releaser))
    assert info.lock_id_hash not in without_links
    assert held.lock_id not in without_links
    confirmation = releaser.get(RELEASE, holder_of(info)).content.decode()
    assert f"<code>{info.lock_id_hash}</code>" in confirmation


@pytest.mark.usefixtures("two_aliases")
def test_the_alias_is_a_column_where_there_are_several(viewer):
    locks["one"].acquire("a", ttl_ms=60_000)
    assert "alias" in headings(viewer)


def test_a_fence_has_no_leading_zeros_and_its_title_has_them(backend, releaser):
    backend.acquire("a", ttl_ms=60_000).release()
    held = backend.acquire("a", ttl_ms=60_000)
    shown = f'<span class="syncguard-fence" title="{held.fence}">2</span>'
    assert shown in page(releaser)
    confirmation = releaser.get(RELEASE, holder_of(backend.lookup(key="a")))
    assert shown in confirmation.content.decode()


def test_every_cell_has_a_label_for_narrow_screens(backend, viewer):
    backend.acquire("a", ttl_ms=60_000)
    labels = re.findall(r'syncguard-label" aria-hidden="true">([^<]+)<', page(viewer))
    assert labels == ["key hash", "holder", "expires in", "held for", "fence"]


# Redis is down


def test_the_number_of_locks_of_a_dead_redis_is_unknown(settings, viewer):
    settings.SYNCGUARD = {"default": {"LOCATION": "redis://127.0.0.1:1/0"}}
    html = page(viewer)
    assert "The number of locks is unknown" in html
    assert not re.search(r"\b0\s+locks", html)
    assert 'data-total="unknown"' in html
    assert "Redis at 127.0.0.1:1, database 0, cannot be reached" in html


def test_the_locks_of_a_live_redis_are_counted_beside_a_dead_one(settings, syncguard_redis, viewer):
    settings.SYNCGUARD = {
        "dead": {"LOCATION": "redis://127.0.0.1:1/0"},
        "live": {"LOCATION": syncguard_redis.url},
    }
    locks["live"].acquire("a", ttl_ms=60_000)
    html = page(viewer)
    assert re.search(r"\b1\s+lock\b", html)
    assert 'data-total="unknown"' in html, "for the screen reader: nobody knows how many in all"


# Returning to the list


def test_release_pages_keep_the_filters_of_the_list(backend, releaser):
    backend.acquire("a", ttl_ms=60_000, holder="worker-7")
    [link] = re.findall(
        r'href="([^"]+)">Release…', page(releaser, q="worker", o="-3", using="default")
    )
    back = f"{LIST}?q=worker&amp;o=-3&amp;using=default"
    asked = releaser.get(link).content.decode()
    assert asked.count(f'href="{back}"') == 2, "the breadcrumb, and the button that goes back"
    [action] = re.findall(r'<form method="post" action="([^"]+)"', asked.partition("</table>")[2])
    data = {name: value[0] for name, value in parse_qs(urlsplit(link).query).items()}
    response = post(releaser, unescape(action), **data)
    assert response["Location"] == unescape(back)
    assert not backend.is_locked("a")


def test_the_filters_cannot_redirect_to_another_site(backend, releaser):
    backend.acquire("a", ttl_ms=60_000)
    marks = holder_of(backend.lookup(key="a"))
    html = releaser.get(RELEASE, {**marks, "_changelist_filters": '//evil.example/"><script>'})
    assert b"<script>" not in html.content.replace(b"<script src", b"")
    response = post(releaser, f"{RELEASE}?_changelist_filters=//evil.example", **marks)
    assert response["Location"].startswith(f"{LIST}?")


def test_the_breadcrumbs_link_to_the_app_and_the_list(backend, releaser):
    backend.acquire("a", ttl_ms=60_000)
    asked = releaser.get(RELEASE, holder_of(backend.lookup(key="a"))).content.decode()
    crumbs = re.search(r'<ol class="breadcrumbs[^>]*>(.*?)</ol>', asked, re.DOTALL)[1]
    assert re.findall(r'href="([^"]+)"', crumbs) == ["/admin/", "/admin/syncguard_django/", LIST]


# Raw keys


@pytest.mark.parametrize(
    ("show_keys", "permissions", "shown"),
    [
        (True, ("view_lock", "release_lock", "view_lock_key"), True),
        (True, ("view_lock", "release_lock"), False),
        (False, ("view_lock", "release_lock", "view_lock_key"), False),
    ],
)
def test_raw_keys_need_the_setting_and_the_permission(configure, show_keys, permissions, shown):
    configure(SHOW_KEYS=show_keys)
    locks["default"].acquire(KEY, ttl_ms=60_000)
    client = visitor(*permissions)
    assert (KEY in page(client)) is shown
    assert ("raw_key" in headings(client)) is shown
    confirmation = client.get(RELEASE, holder_of(locks["default"].lookup(key=KEY)))
    assert (KEY in confirmation.content.decode()) is shown
    assert shown_hash(KEY) in page(client)


def test_a_raw_key_is_text_and_not_markup(configure):
    configure(SHOW_KEYS=True)
    locks["default"].acquire("<script>alert(1)</script>", ttl_ms=60_000)
    client = visitor("view_lock", "view_lock_key")
    assert b"<script>alert" not in client.get(LIST).content


def test_only_the_alias_that_allows_it_shows_its_keys(settings, syncguard_redis):
    settings.SYNCGUARD = {
        "open": {"LOCATION": syncguard_redis.url, "KEY_PREFIX": "open", "SHOW_KEYS": True},
        "closed": {"LOCATION": syncguard_redis.url, "KEY_PREFIX": "closed"},
    }
    locks["open"].acquire("public", ttl_ms=60_000)
    locks["closed"].acquire(KEY, ttl_ms=60_000)
    html = page(visitor("view_lock", "view_lock_key"))
    assert "<code>public</code>" in html
    assert KEY not in html


def test_shown_keys_are_never_in_an_address(configure):
    configure(SHOW_KEYS=True)
    locks["default"].acquire(KEY, ttl_ms=60_000)
    client = visitor("view_lock", "release_lock", "view_lock_key")
    addresses = "".join(re.findall(r'(?:href|action)="[^"]*"', page(client)))
    assert "Eve" not in addresses
    assert message_after(client, post(client, FIND, key=KEY)).startswith(
        "The lock of that key is held"
    )
