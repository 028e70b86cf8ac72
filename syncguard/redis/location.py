"""Reads and checks the settings of a project that stores its locks in Redis. No I/O.

No text contains a value of a setting: it may be a password.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from syncguard._backend.settings import Finding, GivenLocation, Location, SettingProblem
from syncguard.redacted_text import Secret
from syncguard.redis.address import Address, parse
from syncguard.redis.caches_setting import NotRedisError, redis_of
from syncguard.redis.client_options import QUICK_TIMEOUT_S, impatient_options
from syncguard.redis.replica_acknowledgement import OPTIONS as REPLICA_OPTIONS
from syncguard.redis.server_group import ServerGroup
from syncguard.redis.server_group_settings import read_group

_NO_URL: Final = (
    "must be a URL such as redis://[[username]:[password]@]host:6379/0, rediss://..., unix://...,"
    " redis+sentinel://host:26379,host:26379/master/0 or redis+cluster://host:6379,host:6379;"
    " special characters in a password must be percent-encoded"
)
_GROUP_WITH_TLS: Final = 'Use a URL that begins with rediss, or OPTIONS: {"ssl": True}.'
OWN_SETTINGS: Final = ("SENTINELS", "MASTER_NAME", "CLUSTER")
"""The settings that only Redis has."""


def read_location(given: GivenLocation) -> Location | SettingProblem:
    """Return the Redis that the settings name. Implements ``RedisBackend.read_location``."""
    inherited: Mapping[str, object] = {}
    if given.database is not None:
        return SettingProblem(
            "DATABASE",
            'needs a BACKEND that uses a database, such as "syncguard.postgres.PostgresBackend"',
        )
    address: Address | ServerGroup | SettingProblem | None = read_group(given)
    if isinstance(address, SettingProblem):
        return address
    if address is None and given.cache is not None:
        try:
            found = redis_of(given.cache)
        except NotRedisError as error:
            return SettingProblem("CACHE", f"names a CACHES entry that cannot be used: {error}")
        address, inherited = found.address, found.options
    elif address is None:
        if not isinstance(given.location, str):
            return SettingProblem("LOCATION", _NO_URL)
        try:
            address = parse(given.location)
        except ValueError:
            return SettingProblem("LOCATION", _NO_URL)
    options = _client_options(address, inherited, given.options)
    store = (*address.server, options.get("db", 0))
    quick = {**options, **impatient_options(_quick_timeout_s(options))}
    for name in REPLICA_OPTIONS:  # a page acquires nothing, and its time-outs are short
        quick.pop(name, None)
    # Remove these options from the URL's query: in redis-py the query overrides arguments.
    return Location(
        address.without(options).url,
        options,
        store=store,
        findings=tuple(_findings(given, address, options, store)),
        quick=Location(address.without((*quick, *REPLICA_OPTIONS)).url, quick),
    )


def _client_options(
    address: Address | ServerGroup, *given: Mapping[str, object]
) -> dict[str, object]:
    """All client options except host and port. Later mappings override earlier ones."""
    options: dict[str, object] = {
        "db": address.db,
        "username": address.username,
        "password": address.password,
    }
    for each in given:
        options.update(each)
    options["password"] = _as_secret(options["password"])
    of_sentinels = options.get("sentinel_kwargs")
    if isinstance(of_sentinels, Mapping) and "password" in of_sentinels:
        secret = _as_secret(of_sentinels["password"])
        options["sentinel_kwargs"] = {**of_sentinels, "password": secret}
    return {name: value for name, value in options.items() if value is not None}


def _as_secret(password: object) -> object:
    return Secret(password) if isinstance(password, str) else password


def _quick_timeout_s(options: Mapping[str, object]) -> float:
    chosen = options.get("socket_timeout")
    return min(chosen, QUICK_TIMEOUT_S) if isinstance(chosen, int | float) else QUICK_TIMEOUT_S


def _findings(
    given: GivenLocation,
    address: Address | ServerGroup,
    options: Mapping[str, object],
    store: object,
) -> Iterator[Finding]:
    for name, entry in given.caches.items():
        if _store_of(entry) == store:
            fences = "" if given.fence_floor else ", and fences restart at 1"
            yield Finding(
                "flushed",
                f'shares a Redis database with CACHES["{name}"]: cache.clear() is FLUSHDB.'
                f" It deletes live locks{fences}.",
                'Use a separate database for locks (OPTIONS: {"db": 1}).',
            )
    for name in sorted(address.options_in_query & given.options.keys()):
        yield Finding(
            "said-twice",
            f"sets {name} in the query of LOCATION and in OPTIONS; OPTIONS takes precedence.",
            "Remove one of the two.",
        )
    if address.is_remote and not (address.uses_tls or options.get("ssl") is True):
        text = "connects to a remote Redis without TLS."
        hint = "Use a rediss:// URL." if isinstance(address, Address) else _GROUP_WITH_TLS
        yield Finding("plaintext", text, hint, in_production=True)
    if not (options.get("password") or options.get("credential_provider")):
        hint = "Put the password into LOCATION, or into OPTIONS."
        yield Finding("no-password", "uses a Redis without a password.", hint, in_production=True)


def _store_of(cache: object) -> object:
    try:
        return redis_of(cache).store
    except NotRedisError:
        return None
