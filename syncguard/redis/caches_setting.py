"""Reads an entry of Django's ``CACHES``: which Redis it uses, and with which client options.

Supports Django's own ``RedisCache`` and django-redis. Only reads a dictionary; opens no connection.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final

from syncguard.dotted_path import import_dotted
from syncguard.redis.address import Address, parse

DJANGO_CACHE: Final = "django.core.cache.backends.redis.RedisCache"
DJANGO_REDIS_CACHE: Final = "django_redis.cache.RedisCache"

# Options of the cache, not of the Redis client.
_CACHE_ONLY_OPTIONS: Final = frozenset({"serializer", "pool_class", "parser_class"})
_DJANGO_REDIS_OPTIONS: Final = {
    "USERNAME": "username",
    "PASSWORD": "password",
    "SOCKET_TIMEOUT": "socket_timeout",
    "SOCKET_CONNECT_TIMEOUT": "socket_connect_timeout",
}


class NotRedisError(Exception):
    """A lock cannot use this cache entry. The text gives the reason, without setting values."""


@dataclass(frozen=True, slots=True)
class CacheRedis:
    """The Redis of one cache."""

    address: Address
    options: Mapping[str, object] = field(repr=False)

    @property
    def store(self) -> Hashable:
        return (*self.address.server, self.options.get("db", self.address.db))


def redis_of(entry: object) -> CacheRedis:
    """Return the Redis of a ``CACHES`` entry: the first server, to which the cache writes."""
    if not isinstance(entry, Mapping):
        raise NotRedisError("it is not a dictionary")
    options = entry.get("OPTIONS") or {}
    if not isinstance(options, Mapping):
        raise NotRedisError("its OPTIONS is not a dictionary")
    kind = _kind_of(entry.get("BACKEND"))
    if kind == DJANGO_REDIS_CACHE:
        client_options = _django_redis_options(options)
    else:
        client_options = {k: v for k, v in options.items() if k not in _CACHE_ONLY_OPTIONS}
    try:
        address = parse(_first(entry.get("LOCATION")))
    except ValueError:
        raise NotRedisError("its LOCATION is not a Redis URL") from None
    return CacheRedis(address, client_options)


def _kind_of(backend: object) -> str:
    if backend in (DJANGO_CACHE, DJANGO_REDIS_CACHE):
        return str(backend)
    try:
        cls = import_dotted(str(backend))
    except ImportError:
        raise NotRedisError("its BACKEND cannot be imported") from None
    names = {f"{base.__module__}.{base.__qualname__}" for base in getattr(cls, "__mro__", ())}
    for known in (DJANGO_CACHE, DJANGO_REDIS_CACHE):
        if known in names:
            return known
    raise NotRedisError(f"its BACKEND is neither {DJANGO_CACHE} nor {DJANGO_REDIS_CACHE}")


def _django_redis_options(options: Mapping[str, object]) -> dict[str, object]:
    if "SENTINELS" in options:
        raise NotRedisError("it uses Sentinel: give SENTINELS and MASTER_NAME instead")
    found = {
        ours: options[theirs]
        for theirs, ours in _DJANGO_REDIS_OPTIONS.items()
        if options.get(theirs)
    }
    pool = options.get("CONNECTION_POOL_KWARGS") or {}
    return {**found, **(pool if isinstance(pool, Mapping) else {})}


def _first(location: object) -> str:
    if isinstance(location, str):
        return location.replace(";", ",").split(",")[0]
    if isinstance(location, list | tuple) and location:
        return str(location[0])
    raise ValueError
