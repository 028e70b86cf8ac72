"""System checks: what can be known of the settings without asking any server.

``docs/reference/django-checks.md`` lists the ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, Final

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured

from syncguard import DEFAULT_KEY_PREFIX
from syncguard.short_ttl import SHORT_TTL_MS
from syncguard_django.aliases import make_backend
from syncguard_django.caches import CacheRedis, NotRedisError, redis_of
from syncguard_django.configuration import (
    SETTING,
    AliasSettings,
    ProblemKind,
    configuration,
)

TAG: Final = "syncguard"

_ERROR_IDS: Final[dict[ProblemKind, str]] = {
    "shape": "syncguard.E001",
    "unknown": "syncguard.E002",
    "value": "syncguard.E003",
    "cache": "syncguard.E004",
}


def check_settings(**_kwargs: Any) -> Sequence[CheckMessage]:
    """For every ``manage.py check``: is the setting right, and do the aliases get on?"""
    config = configuration()
    aliases = list(config.aliases.values())
    return [
        *(
            Error(str(problem), hint=problem.hint, id=_ERROR_IDS[problem.kind])
            for problems in config.problems.values()
            for problem in problems
        ),
        *(message for alias in aliases for message in _unusable(alias)),
        *(message for pair in combinations(aliases, 2) for message in _overlapping(*pair)),
        *(message for alias in aliases for message in _flushed_by_a_cache(alias)),
        *(message for alias in aliases for message in _said_twice(alias)),
        *(message for alias in aliases for message in _short(alias)),
    ]


def check_deployment(**_kwargs: Any) -> Sequence[CheckMessage]:
    """For ``manage.py check --deploy``: would this be right in production?"""
    return [message for alias in configuration().aliases.values() for message in _careless(alias)]


def _unusable(alias: AliasSettings) -> Iterator[CheckMessage]:
    try:
        make_backend(alias)
    except ImproperlyConfigured as error:
        if isinstance(error.__cause__, ImportError):
            hint = "Install the package that BACKEND belongs to, or correct the path."
            yield Error(str(error), hint=hint, id="syncguard.E005")
        else:
            yield Error(str(error), id="syncguard.E003")


def _overlapping(one: AliasSettings, other: AliasSettings) -> Iterator[CheckMessage]:
    if (one.address.server, one.db) != (other.address.server, other.db):
        return
    shorter, longer = sorted((_with_colon(one.key_prefix), _with_colon(other.key_prefix)), key=len)
    if longer.startswith(shorter):
        yield Warning(
            f'{SETTING}["{one.alias}"] and {SETTING}["{other.alias}"] share a Redis database, and'
            " their KEY_PREFIX values overlap: a lock of one can be a lock of the other.",
            hint="Give each a KEY_PREFIX that does not begin with the other's.",
            id="syncguard.W001",
        )
    if shorter == longer and _bytes(one.hash_secret) != _bytes(other.hash_secret):
        yield Warning(
            f'{SETTING}["{one.alias}"] and {SETTING}["{other.alias}"] show the same locks under'
            " different hashes.",
            hint="Give both the same HASH_SECRET, as every service that shares these locks.",
            id="syncguard.W003",
        )


def _flushed_by_a_cache(alias: AliasSettings) -> Iterator[CheckMessage]:
    if alias.fence_floor is not None:
        return
    for name, redis in _redis_caches(settings.CACHES):
        if (redis.address.server, redis.db) == (alias.address.server, alias.db):
            yield Warning(
                f'{SETTING}["{alias.alias}"] shares a Redis database with CACHES["{name}"]:'
                " cache.clear() is FLUSHDB. It deletes live locks, and fences go back to 1.",
                hint='Use a database of its own (OPTIONS: {"db": 1}); to keep at least the fences'
                ' from going back, set FENCE_FLOOR: "clock".',
                id="syncguard.W002",
            )


def _short(alias: AliasSettings) -> Iterator[CheckMessage]:
    if alias.ttl_ms < SHORT_TTL_MS:
        yield Warning(
            f'{SETTING}["{alias.alias}"]["TTL_MS"] is below one second. It is milliseconds.',
            hint="30 seconds are 30_000.",
            id="syncguard.W005",
        )


def _said_twice(alias: AliasSettings) -> Iterator[CheckMessage]:
    for name in alias.overridden:
        yield Warning(
            f'{SETTING}["{alias.alias}"] names {name} in the query of LOCATION and in OPTIONS;'
            " OPTIONS wins.",
            hint="Keep one of the two.",
            id="syncguard.W004",
        )


def _careless(alias: AliasSettings) -> Iterator[CheckMessage]:
    where = f'{SETTING}["{alias.alias}"]'
    if alias.address.is_remote and not alias.address.uses_tls:
        yield Warning(
            f"{where} reaches a remote Redis without TLS.",
            hint="Use a rediss:// URL.",
            id="syncguard.W010",
        )
    if not alias.has_password:
        yield Warning(
            f"{where} uses a Redis without a password.",
            hint="Put the password into LOCATION, or into OPTIONS.",
            id="syncguard.W011",
        )
    if alias.key_prefix == DEFAULT_KEY_PREFIX:
        yield Warning(
            f"{where} uses the default KEY_PREFIX: another project on this Redis may, too.",
            hint="Set KEY_PREFIX to the name of the project.",
            id="syncguard.W012",
        )
    if alias.hash_secret is None:
        yield Warning(
            f"{where} shows the specification's hashes: short keys can be guessed from them, and"
            " those of neighbouring keys look alike.",
            hint="Remove HASH_SECRET: None, or set it to a long random value, the same in every"
            " service on this Redis.",
            id="syncguard.W013",
        )
    if alias.show_keys:
        yield Warning(
            f"{where} has SHOW_KEYS: the admin shows raw keys to whoever has the permission"
            " syncguard_django.view_lock_key.",
            hint="Make sure that keys hold no personal data, or remove SHOW_KEYS.",
            id="syncguard.W014",
        )


def _redis_caches(caches: Mapping[str, object]) -> Iterator[tuple[str, CacheRedis]]:
    for name, entry in caches.items():
        try:
            yield name, redis_of(entry)
        except NotRedisError:
            continue


def _bytes(secret: str | bytes | None) -> bytes | None:
    """``"pepper"`` and ``b"pepper"`` make the same hashes."""
    return secret.encode() if isinstance(secret, str) else secret


def _with_colon(prefix: str) -> str:
    return prefix.rstrip(":") + ":"
