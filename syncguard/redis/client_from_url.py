"""Makes redis-py's clients from a URL: of one server, of a master behind Sentinel, of a cluster.

Makes no connection: not even for a cluster, whose blocking client would ask a node for the others
at once. No error quotes the URL or an option's value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, NoReturn

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as _AsyncSentinel
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel as _Sentinel

from syncguard.errors import InvalidArgument, invalid_argument
from syncguard.redis.client_options import check_types, unknown_option
from syncguard.redis.cluster_client import AsyncNamedCluster, ClusterOnFirstUse, cluster_only
from syncguard.redis.server_group import GROUP_FORMS, ServerGroup, is_group_url, parse_group

SENTINEL_TIMEOUT_S: Final = 1.0
"""How long to wait for one Sentinel, before the next is asked. They are asked only to connect."""


class Sentinels(_Sentinel):
    """Keeps no connection between questions. So there is nothing to close."""

    def discover_master(self, service_name: str) -> Any:
        try:
            return super().discover_master(service_name)  # type: ignore[no-untyped-call]
        finally:
            for each in self.sentinels:
                each.connection_pool.disconnect(inuse_connections=False)


class AsyncSentinels(_AsyncSentinel):
    """The same for asyncio. A connection that is kept would also belong to one event loop."""

    async def discover_master(self, service_name: str) -> Any:
        try:
            return await super().discover_master(service_name)
        finally:
            for each in self.sentinels:
                await each.connection_pool.disconnect(inuse_connections=False)


class _Library(NamedTuple):
    """One of redis-py's two halves."""

    client: Any
    sentinels: Any
    cluster: Any
    no_retries: Callable[[], object]


_BLOCKING: Final = _Library(
    redis.Redis, Sentinels, ClusterOnFirstUse, lambda: Retry(NoBackoff(), 0)
)
_ASYNCIO: Final = _Library(
    redis.asyncio.Redis, AsyncSentinels, AsyncNamedCluster, lambda: AsyncRetry(NoBackoff(), 0)
)


def client_from_url(url: str, options: Mapping[str, object]) -> Any:
    """A blocking client. Raises InvalidArgument."""
    return _client(_BLOCKING, url, options)


def async_client_from_url(url: str, options: Mapping[str, object]) -> Any:
    """An asyncio client. Raises InvalidArgument."""
    return _client(_ASYNCIO, url, options)


def _client(library: _Library, url: str, options: Mapping[str, object]) -> Any:
    check_types(options)
    try:
        if is_group_url(url):
            return _client_of_group(library, parse_group(url), options)
        return _checked(library.client.from_url(url, **options))
    except InvalidArgument:
        raise
    except Exception as error:
        _refuse(error, options)


def _checked(client: Any) -> Any:
    pool: Any = client.connection_pool
    pool.connection_class(**pool.connection_kwargs)  # raises for a wrong option; no I/O
    return client


def _refuse(error: Exception, options: Mapping[str, object]) -> NoReturn:
    """Raise InvalidArgument "from None", and with no part of the original text.

    That text can quote a part of the URL, and the part may be the password.
    """
    unknown = unknown_option(error, options) if isinstance(error, TypeError) else None
    if unknown is not None:
        raise unknown from None
    what = "option is unknown" if isinstance(error, TypeError) else "URL is malformed"
    raise invalid_argument(
        f"could not create a Redis client: the {what}; a URL looks like"
        f" redis://[[username]:[password]]@host:6379/0, {GROUP_FORMS}"
    ) from None


def _client_of_group(library: _Library, group: ServerGroup, given: Mapping[str, object]) -> Any:
    options = _options_of(group, given)
    if group.kind == "cluster":
        return _cluster_client(library, group, options)
    of_sentinels = _sentinel_options(library, options)
    check_types(of_sentinels)
    try:
        sentinels = library.sentinels(group.hosts, sentinel_kwargs=of_sentinels)
        for each in sentinels.sentinels:
            _checked(each)
    except TypeError as error:
        _refuse(error, of_sentinels)
    return _checked(sentinels.master_for(group.master, redis_class=library.client, **options))


def _options_of(group: ServerGroup, given: Mapping[str, object]) -> dict[str, object]:
    """All options of the client. What the URL contains takes precedence, as in redis-py."""
    of_url: dict[str, Any] = parse_url(  # type: ignore[no-untyped-call]
        f"redis://localhost?{group.query}"
    )
    del of_url["host"]
    options = {**given, **of_url}
    for name, value in (("username", group.username), ("password", group.password)):
        if value is not None:
            options[name] = value
    if group.db:
        options["db"] = group.db
    options["ssl"] = options.get("ssl", group.uses_tls)
    if not isinstance(options["ssl"], bool):
        raise invalid_argument("the client option ssl must be True or False")
    return options


def _sentinel_options(library: _Library, options: dict[str, object]) -> dict[str, object]:
    """The options of the clients that ask the Sentinels; removes theirs from ``options``."""
    own = options.pop("sentinel_kwargs", None) or {}
    if not isinstance(own, Mapping):
        raise invalid_argument("the client option sentinel_kwargs must be a dictionary")
    chosen = options.get("socket_timeout")
    timeout_s = SENTINEL_TIMEOUT_S
    if isinstance(chosen, int | float):
        timeout_s = min(timeout_s, chosen)
    tls = {name: value for name, value in options.items() if name.startswith("ssl")}
    return {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": library.no_retries(),
        **(tls if options["ssl"] else {}),
        **own,
    }


def _cluster_client(library: _Library, group: ServerGroup, options: dict[str, object]) -> Any:
    if options.pop("db", 0) not in (0, None):
        raise invalid_argument("a Redis cluster has only database 0: remove the database number")
    # A client of one server refuses wrong options. That of a cluster would ignore some.
    single = {name: value for name, value in options.items() if name not in cluster_only()}
    _checked(library.client(**single))
    return library.cluster(group.hosts, options)
