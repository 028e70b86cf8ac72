"""From a URL such as ``memory://name`` to a store. No I/O."""

from __future__ import annotations

from typing import Final

from syncguard._backend.settings import GivenLocation, Location, SettingProblem
from syncguard.errors import invalid_argument
from syncguard.memory.store import MemoryStore

SCHEME: Final = "memory://"


def store_of_url(url: str) -> MemoryStore:
    """The store that a URL names. Raises InvalidArgument."""
    if not isinstance(url, str) or not url.lower().startswith(SCHEME):
        raise invalid_argument("the URL of a store in memory looks like memory://name")
    return MemoryStore.named(url[len(SCHEME) :])


def read_location(given: GivenLocation) -> Location | SettingProblem:
    """Read the settings of a project."""
    if given.cache is not None:
        return SettingProblem("CACHE", "is not supported by this backend: give a LOCATION")
    if given.database is not None:
        return SettingProblem("DATABASE", "is not supported by this backend: give a LOCATION")
    location = given.location
    if not isinstance(location, str) or not location.lower().startswith(SCHEME):
        return SettingProblem("LOCATION", "must be a URL such as memory://tests")
    return Location(location, given.options, store=("memory", location[len(SCHEME) :]))
