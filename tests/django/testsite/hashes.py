"""The hashes that the test site shows: keyed with the secret derived from its ``SECRET_KEY``."""

from __future__ import annotations

from django.conf import settings

from syncguard import keyed_hash
from syncguard_django.key_hash_secrets import derive


def shown_hash(value):
    return keyed_hash(derive(settings.SECRET_KEY), value)
