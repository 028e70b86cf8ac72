"""Visiting the admin page of the test site as a browser does."""

from __future__ import annotations

import re
from html import unescape

from django.contrib.auth.models import Permission, User
from django.test import Client

LIST = "/admin/syncguard_django/lock/"
FIND = f"{LIST}find/"
RELEASE = f"{LIST}release/"


def visitor(*permissions, is_staff=True):
    user = User.objects.create_user("ann", is_staff=is_staff)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client(enforce_csrf_checks=True)
    client.force_login(user)
    return client


def page(client, **parameters):
    response = client.get(LIST, parameters)
    assert response.status_code == 200
    return unescape(response.content.decode())


def rows(client, **parameters):
    """The key hashes that the list shows, in order."""
    html = page(client, **parameters)
    return re.findall(r'<code class="syncguard-hash"[^>]*>(\w+)<', html)


def post(client, url, **data):
    """POST like a browser: with the token of a page that was loaded before."""
    client.get(LIST)
    token = client.cookies["csrftoken"].value
    return client.post(url, {**data, "csrfmiddlewaretoken": token})


def message_after(client, response):
    """What the page after a redirect says."""
    html = client.get(response["Location"]).content.decode()
    [messages] = re.findall(r'<ul class="messagelist">(.*?)</ul>', html, re.DOTALL)
    return unescape(re.sub(r"<[^>]+>", "", messages)).strip()


def holder_of(info, using="default"):
    return {
        "using": using,
        "key_hash": info.key_hash,
        "fence": info.fence,
        "lock_id_hash": info.lock_id_hash,
        "acquired_at_ms": info.acquired_at_ms,
    }
