"""How the settings of a project become a backend: plain values between an adapter and a class.

The adapter knows the settings' names and the framework; the class knows what its location and its
options mean. Nothing here does I/O, and no text contains a value of a setting.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

FindingKind = Literal["flushed", "said-twice", "plaintext", "no-password", "other"]
"""What a finding is about; an adapter gives each kind an id of its own."""


@dataclass(frozen=True, slots=True)
class GivenLocation:
    """What the settings of a project say of where the locks are."""

    location: object = field(default=None, repr=False)
    """``LOCATION``, as it was written. None where a cache is named instead."""
    options: Mapping[str, object] = field(default_factory=dict, repr=False)
    cache: object = field(default=None, repr=False)
    """The entry of ``CACHES`` whose store is to be used, as a plain dictionary."""
    caches: Mapping[str, object] = field(default_factory=dict, repr=False)
    """All of ``CACHES``: to see what else uses the store."""
    fence_floor: bool = False
    """Whether fences that are lost start at the clock."""


@dataclass(frozen=True, slots=True)
class SettingProblem:
    """A setting that cannot be used: which one, and what was expected of it."""

    setting: Literal["LOCATION", "CACHE", "OPTIONS"]
    expected: str
    """Completes a sentence that begins with the name of the setting: "must be a URL such as"."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A setting that can be used, but perhaps should not be."""

    kind: FindingKind
    text: str
    """Completes a sentence that begins with the name of the backend: "has no password"."""
    hint: str | None = None
    in_production: bool = False
    """Whether it matters in production only."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where the locks are, as a backend class read it."""

    url: str = field(repr=False)
    """For ``from_url``."""
    options: Mapping[str, object] = field(default_factory=dict, repr=False)
    """For ``from_url``."""
    store: Hashable = field(default=None, repr=False)
    """Equal for two locations of one store, as far as settings can tell."""
    findings: tuple[Finding, ...] = ()
    quick: Location | None = field(default=None, repr=False)
    """For a backend that somebody waits for in front of a page: one short try. None: this one."""


@runtime_checkable
class ReadsLocation(Protocol):
    """A backend class that reads and checks its own settings. Without: see ``plain_location``."""

    @classmethod
    def read_location(cls, given: GivenLocation, /) -> Location | SettingProblem: ...


def plain_location(given: GivenLocation) -> Location | SettingProblem:
    """For a class that reads no settings itself: the URL and the options as they are."""
    if given.cache is not None:
        return SettingProblem("CACHE", "is not supported by this backend: give a LOCATION")
    if not isinstance(given.location, str) or "://" not in given.location:
        return SettingProblem("LOCATION", "must be a URL")
    return Location(given.location, given.options, store=given.location)
