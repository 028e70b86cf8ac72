"""Reads and checks the settings of a project that stores its locks in Redis. No I/O.

No text contains a value of a setting: it may be a password.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, cast

from syncguard._backend.settings import Finding, GivenLocation, Location, SettingProblem
from syncguard.redacted_text import Secret
from syncguard.redis.address import Address, parse
from syncguard.redis.caches_setting import NotRedisError, redis_of
from syncguard.redis.client_options import QUICK_TIMEOUT_S, impatient_options

_NO_URL: Final = (
    "must be a URL such as redis://[[username]:[password]@]host:6379/0, rediss://... or unix://...;"
    " special characters in a password must be percent-encoded"
)


def read_location(given: GivenLocation) -> Location | SettingProblem:
    """Return the Redis that the settings name. Implements ``RedisBackend.read_location``."""
    inherited: Mapping[str, object] = {}
    if given.cache is not None:
        try:
            found = redis_of(given.cache)
        except NotRedisError as error:
            return SettingProblem("CACHE", f"names a CACHES entry that cannot be used: {error}")
        address, inherited = found.address, found.options
    else:
        try:
            address = parse(cast("str", given.location))  # TypeError if it is not a str
        except (ValueError, TypeError, AttributeError):
            return SettingProblem("LOCATION", _NO_URL)
    options = _client_options(address, inherited, given.options)
    store = (*address.server, options.get("db", 0))
    quick = {**options, **impatient_options(_quick_timeout_s(options))}
    # Remove these options from the URL's query: in redis-py the query overrides arguments.
    return Location(
        address.without(options).url,
        options,
        store=store,
        findings=tuple(_findings(given, address, options, store)),
        quick=Location(address.without(quick).url, quick),
    )


def _client_options(address: Address, *given: Mapping[str, object]) -> dict[str, object]:
    """All client options except host and port. Later mappings override earlier ones."""
    options: dict[str, object] = {
        "db": address.db,
        "username": address.username,
        "password": address.password,
    }
    for each in given:
        options.update(each)
    password = options["password"]
    if isinstance(password, str):
        options["password"] = Secret(password)
    return {name: value for name, value in options.items() if value is not None}


def _quick_timeout_s(options: Mapping[str, object]) -> float:
    chosen = options.get("socket_timeout")
    return min(chosen, QUICK_TIMEOUT_S) if isinstance(chosen, int | float) else QUICK_TIMEOUT_S


def _findings(
    given: GivenLocation, address: Address, options: Mapping[str, object], store: object
) -> Iterator[Finding]:
    for name, entry in given.caches.items():
        if not given.fence_floor and _store_of(entry) == store:
            yield Finding(
                "flushed",
                f'shares a Redis database with CACHES["{name}"]: cache.clear() is FLUSHDB.'
                " It deletes live locks, and fences restart at 1.",
                'Use a separate database for locks (OPTIONS: {"db": 1}), or set'
                ' FENCE_FLOOR: "clock" so that at least the fences do not restart.',
            )
    for name in sorted(address.options_in_query & given.options.keys()):
        yield Finding(
            "said-twice",
            f"sets {name} in the query of LOCATION and in OPTIONS; OPTIONS takes precedence.",
            "Remove one of the two.",
        )
    if address.is_remote and not address.uses_tls:
        text = "connects to a remote Redis without TLS."
        yield Finding("plaintext", text, "Use a rediss:// URL.", in_production=True)
    if not (options.get("password") or options.get("credential_provider")):
        hint = "Put the password into LOCATION, or into OPTIONS."
        yield Finding("no-password", "uses a Redis without a password.", hint, in_production=True)


def _store_of(cache: object) -> object:
    try:
        return redis_of(cache).store
    except NotRedisError:
        return None
