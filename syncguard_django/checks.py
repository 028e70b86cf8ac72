"""System checks of the settings. Only one connects to a server: that of a switched off fence floor.

``docs/reference/django-checks.md`` lists the ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, Final

from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured

from syncguard import DEFAULT_KEY_PREFIX, LockError
from syncguard.backend import FindingKind, ReportsHealth
from syncguard.short_ttl_warning import SHORT_TTL_MS
from syncguard_django.configured_backends import locks, make_backend
from syncguard_django.settings import (
    SETTING,
    AliasSettings,
    Problem,
    ProblemKind,
    configuration,
)

TAG: Final = "syncguard"

_ERROR_IDS: Final[dict[ProblemKind, str]] = {
    "shape": "syncguard.E001",
    "unknown": "syncguard.E002",
    "value": "syncguard.E003",
    "cache": "syncguard.E004",
    "import": "syncguard.E005",
    "database": "syncguard.E006",
}
_WARNING_IDS: Final[dict[FindingKind, str]] = {
    "flushed": "syncguard.W002",
    "said-twice": "syncguard.W004",
    "plaintext": "syncguard.W010",
    "no-password": "syncguard.W011",
}
_OTHER_WARNING_ID: Final = "syncguard.W006"
_INSTALL_HINT: Final = "Install the package that BACKEND belongs to, or correct the path."


def check_settings(**_kwargs: Any) -> Sequence[CheckMessage]:
    """For every ``manage.py check``: is the setting right, and do the aliases conflict?"""
    config = configuration()
    aliases = list(config.aliases.values())
    return [
        *(
            Error(str(problem), hint=_hint_of(problem), id=_ERROR_IDS[problem.kind])
            for problems in config.problems.values()
            for problem in problems
        ),
        *(message for alias in aliases for message in _backend_errors(alias)),
        *(message for pair in combinations(aliases, 2) for message in _overlap_warnings(*pair)),
        *(
            message
            for alias in aliases
            for message in _location_warnings(alias, in_production=False)
        ),
        *(message for alias in aliases for message in _short_ttl_warnings(alias)),
    ]


def check_deployment(**_kwargs: Any) -> Sequence[CheckMessage]:
    """For ``manage.py check --deploy``: would this be right in production?"""
    return [
        message
        for alias in configuration().aliases.values()
        for message in _production_warnings(alias)
    ]


def _hint_of(problem: Problem) -> str | None:
    return _INSTALL_HINT if problem.kind == "import" else problem.hint


def _backend_errors(alias: AliasSettings) -> Iterator[CheckMessage]:
    try:
        make_backend(alias)
    except ImproperlyConfigured as error:
        yield Error(str(error), id="syncguard.E003")


def _location_warnings(alias: AliasSettings, *, in_production: bool) -> Iterator[CheckMessage]:
    """What the backend class found in its settings."""
    for finding in alias.location.findings:
        if finding.in_production is in_production:
            text = f'{SETTING}["{alias.alias}"] {finding.text}'
            yield Warning(
                text, hint=finding.hint, id=_WARNING_IDS.get(finding.kind, _OTHER_WARNING_ID)
            )


def _overlap_warnings(one: AliasSettings, other: AliasSettings) -> Iterator[CheckMessage]:
    if one.location.store is None or one.location.store != other.location.store:
        return
    outer, inner = sorted((one, other), key=lambda alias: len(_head(alias)))
    shorter, longer = _head(outer), _head(inner)
    if longer.startswith(shorter):
        yield Warning(
            f'{SETTING}["{one.alias}"] and {SETTING}["{other.alias}"] use the same store,'
            f" and {_consequence(outer, inner)}.",
            hint='Choose KEY_PREFIX values of which none begins with another one and ":".',
            id="syncguard.W001",
        )
    if shorter == longer and _bytes(one.hash_secret) != _bytes(other.hash_secret):
        yield Warning(
            f'{SETTING}["{one.alias}"] and {SETTING}["{other.alias}"] show the same locks under'
            " different hashes.",
            hint="Use one HASH_SECRET for both, and in every service that shares these locks.",
            id="syncguard.W003",
        )


def _short_ttl_warnings(alias: AliasSettings) -> Iterator[CheckMessage]:
    if alias.ttl_ms < SHORT_TTL_MS:
        yield Warning(
            f'{SETTING}["{alias.alias}"]["TTL_MS"] is below one second. The unit is milliseconds.',
            hint="30 seconds are 30_000.",
            id="syncguard.W005",
        )


def _production_warnings(alias: AliasSettings) -> Iterator[CheckMessage]:
    where = f'{SETTING}["{alias.alias}"]'
    yield from _location_warnings(alias, in_production=True)
    if alias.key_prefix == DEFAULT_KEY_PREFIX:
        yield Warning(
            f"{where} uses the default KEY_PREFIX: another project on the same server may too.",
            hint="Set KEY_PREFIX to the name of the project.",
            id="syncguard.W012",
        )
    if alias.hash_secret is None:
        yield Warning(
            f"{where} shows the specification's hashes: short keys can be guessed from them, and"
            " the hashes of similar keys look alike.",
            hint="Remove HASH_SECRET: None, or set it to a long random value, the same in every"
            " service that shares these locks.",
            id="syncguard.W013",
        )
    yield from _fence_floor_warnings(alias)
    if alias.show_keys:
        yield Warning(
            f"{where} has SHOW_KEYS: the admin shows raw keys to users with the permission"
            " syncguard_django.view_lock_key.",
            hint="Make sure that keys hold no personal data, or remove SHOW_KEYS.",
            id="syncguard.W014",
        )


def _fence_floor_warnings(alias: AliasSettings) -> Iterator[CheckMessage]:
    """Asks the server, and only if the floor is switched off."""
    if alias.fence_floor is not None:
        return
    where = f'{SETTING}["{alias.alias}"]'
    try:
        backend = locks.inspector(alias.alias)
        why = backend.health().fences_can_go_back if isinstance(backend, ReportsHealth) else None
    except LockError as error:
        why = f"the server could not be asked whether it can lose fences ({error.code})"
    if why is not None:
        yield Warning(
            f"{where} has FENCE_FLOOR: None, and {why}.",
            hint="Remove FENCE_FLOOR: None, so that a lost fence counter begins at the clock.",
            id="syncguard.W015",
        )


def _bytes(secret: str | bytes | None) -> bytes | None:
    """``"pepper"`` and ``b"pepper"`` produce the same hashes."""
    return secret.encode() if isinstance(secret, str) else secret


def _consequence(outer: AliasSettings, inner: AliasSettings) -> str:
    between = _head(inner).removeprefix(_head(outer))
    if not between:
        return "the same KEY_PREFIX: every lock of one is also a lock of the other"
    return (
        f'the KEY_PREFIX of one begins with that of the other: the key "{between}order" of'
        f' {SETTING}["{outer.alias}"] and the key "order" of {SETTING}["{inner.alias}"] are one'
        " lock with two fence counters, so a later holder can get a lower fence"
    )


def _head(alias: AliasSettings) -> str:
    """What the name of each lock of this alias begins with."""
    prefix = alias.key_prefix.rstrip(":")
    return f"{prefix}:" if prefix else ""
