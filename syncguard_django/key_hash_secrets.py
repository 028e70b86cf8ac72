"""The secrets behind the hashes that pages, commands and signals show.

Unless ``HASH_SECRET`` is set, they are derived from ``SECRET_KEY``: then the hashes of similar keys
look different, and nobody can guess a short key from its hash. The former secrets are derived from
``SECRET_KEY_FALLBACKS``, so that a hash from an older log still finds its lock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.crypto import salted_hmac

_SALT: Final = "syncguard_django.HASH_SECRET"


@dataclass(frozen=True, slots=True)
class DerivedSecrets:
    """Derived from the secret keys of the project. Both are empty if it has none."""

    current: bytes | None = field(default=None, repr=False)
    former: tuple[bytes, ...] = field(default=(), repr=False)


def derived_secrets() -> DerivedSecrets:
    """Derive them from the current settings of the project."""
    try:
        current = settings.SECRET_KEY
    except ImproperlyConfigured:  # empty; locks work without it, and a check reports it
        return DerivedSecrets()
    fallbacks = getattr(settings, "SECRET_KEY_FALLBACKS", None) or ()
    return DerivedSecrets(derive(current), tuple(map(derive, fallbacks)))


def derive(secret_key: str | bytes) -> bytes:
    """A secret for display hashes. Nothing about the secret key can be learned from it."""
    return salted_hmac(_SALT, "", secret=secret_key, algorithm="sha256").digest()
