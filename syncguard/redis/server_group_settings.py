"""Reads ``SENTINELS``, ``MASTER_NAME`` and ``CLUSTER``, and a ``LOCATION`` with several hosts.

No I/O. No text contains a value of a setting: it may be a password.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from syncguard._backend.settings import GivenLocation, SettingProblem
from syncguard.redis.server_group import (
    SENTINEL_PORT,
    ServerGroup,
    is_group_url,
    is_master_name,
    parse_group,
    parse_hosts,
)

_SENTINELS_SHAPE: Final = (
    'must be a list of addresses: pairs such as ("10.0.0.1", 26379), or texts such as'
    ' "10.0.0.1:26379"'
)
_MASTER_SHAPE: Final = (
    'must be the name of the master: the word after "sentinel monitor" in sentinel.conf'
)
_SENTINEL_URL: Final = (
    "must be a URL such as redis+sentinel://[[username]:[password]@]host:26379,host:26379/master/0;"
    " special characters in a password must be percent-encoded"
)
_CLUSTER_URL: Final = (
    "must be a URL with some nodes of the cluster, such as"
    " redis+cluster://[[username]:[password]@]host:6379,host:6379; special characters in a"
    " password must be percent-encoded"
)
_ONE_DATABASE: Final = "must not have a database number: a Redis cluster has only database 0"


def read_group(given: GivenLocation) -> ServerGroup | SettingProblem | None:
    """The Sentinels or the cluster that the settings name; None if they name one server."""
    problem = _combination_problem(given)
    if problem is not None:
        return problem
    if "SENTINELS" in given.own:
        return _sentinels(given.own["SENTINELS"], given.own["MASTER_NAME"])
    if given.own.get("CLUSTER"):
        return _cluster(given)
    if is_group_url(given.location):
        return _group_of_url(given)
    return None


def _combination_problem(given: GivenLocation) -> SettingProblem | None:
    """Settings that are missing beside others, or contradict them."""
    own, cluster = given.own, given.own.get("CLUSTER", False)
    if not isinstance(cluster, bool):
        return SettingProblem("CLUSTER", "must be True or False")
    if "SENTINELS" in own:
        if cluster:
            return SettingProblem("CLUSTER", "must not be True beside SENTINELS: choose one")
        if given.location is not None or given.cache is not None:
            other = "LOCATION" if given.cache is None else "CACHE"
            return SettingProblem("SENTINELS", f"already names the servers: remove {other}")
        if "MASTER_NAME" not in own:
            return SettingProblem("MASTER_NAME", f"is missing beside SENTINELS: it {_MASTER_SHAPE}")
    elif "MASTER_NAME" in own:
        text = "needs SENTINELS beside it: the addresses of the Sentinels"
        if is_group_url(given.location):
            text = "must not be given beside such a LOCATION, which contains the name"
        return SettingProblem("MASTER_NAME", text)
    if cluster and given.cache is not None:
        return SettingProblem("CLUSTER", "cannot be used with CACHE: give a LOCATION")
    return None


def _sentinels(given: object, master: object) -> ServerGroup | SettingProblem:
    if not is_master_name(master):
        return SettingProblem("MASTER_NAME", _MASTER_SHAPE)
    if not isinstance(given, list | tuple) or not given:
        return SettingProblem("SENTINELS", _SENTINELS_SHAPE)
    try:
        hosts = tuple(_host_of(each) for each in given)
    except ValueError:
        return SettingProblem("SENTINELS", _SENTINELS_SHAPE)
    return ServerGroup("sentinel", hosts, str(master))


def _host_of(given: object) -> tuple[str, int]:
    if isinstance(given, str):
        return parse_hosts([given], SENTINEL_PORT)[0]
    if isinstance(given, list | tuple) and len(given) == 2:
        host, port = given
        if isinstance(host, str) and type(port) is int and 0 < port < 65_536:
            ((name, _),) = parse_hosts([f"[{host}]" if ":" in host else host], SENTINEL_PORT)
            return name, port
    raise ValueError


def _cluster(given: GivenLocation) -> ServerGroup | SettingProblem:
    """``CLUSTER: True``: the ``LOCATION`` may also begin with redis:// or rediss://."""
    location = given.location
    if not isinstance(location, str):
        return SettingProblem("LOCATION", _CLUSTER_URL)
    scheme, separator, rest = location.partition("://")
    if scheme.lower() in ("redis", "rediss"):
        location = f"{scheme}+cluster{separator}{rest}"
    return _group_of_url(replace(given, location=location), _CLUSTER_URL)


def _group_of_url(given: GivenLocation, expected: str = "") -> ServerGroup | SettingProblem:
    location = str(given.location)
    scheme = location.partition("://")[0].lower()
    shape = expected or (_SENTINEL_URL if scheme.endswith("sentinel") else _CLUSTER_URL)
    try:
        group = parse_group(location)
    except ValueError:
        return SettingProblem("LOCATION", shape)
    if group.kind == "sentinel":
        return SettingProblem("LOCATION", shape) if expected else group
    if given.own.get("CLUSTER") is False:
        return SettingProblem("CLUSTER", "is False, but LOCATION names a cluster: remove it")
    if group.db:
        return SettingProblem("LOCATION", _ONE_DATABASE)
    if given.options.get("db"):
        return SettingProblem("OPTIONS", _ONE_DATABASE)
    return group
