"""From the settings of a project to a backend: values that an adapter and a backend class exchange.

The adapter reads the settings of the framework; the class interprets its location and its options.
Nothing here does I/O, and no text contains a value of a setting.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol, runtime_checkable

FindingKind = Literal["flushed", "said-twice", "plaintext", "no-password", "other"]
"""What a finding is about; an adapter assigns an id to each kind."""


@dataclass(frozen=True, slots=True)
class GivenLocation:
    """What the settings of a project contain about the location of the locks."""

    location: object = field(default=None, repr=False)
    """``LOCATION``, unchanged. None if ``CACHE`` or ``DATABASE`` is set."""
    options: Mapping[str, object] = field(default_factory=dict, repr=False)
    cache: object = field(default=None, repr=False)
    """The entry of ``CACHES`` whose server is to be used, as a plain dictionary."""
    caches: Mapping[str, object] = field(default_factory=dict, repr=False)
    """All of ``CACHES``: to find out what else uses the same server."""
    database: object = field(default=None, repr=False)
    """The entry of ``DATABASES`` whose server is to be used, as a plain dictionary."""
    own: Mapping[str, object] = field(default_factory=dict, repr=False)
    """The settings that only this class has: see ``own_settings``."""
    fence_floor: bool = False
    """Whether ``FENCE_FLOOR`` is set: a lost fence counter restarts at the clock."""


@dataclass(frozen=True, slots=True)
class SettingProblem:
    """A setting that is not valid: which one, and what was expected."""

    setting: str
    """``LOCATION``, ``CACHE``, ``DATABASE``, ``OPTIONS`` or one of the class's own settings."""
    expected: str
    """Completes a sentence that begins with the name of the setting: "must be a URL such as"."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A setting that is valid but may be a mistake."""

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
    """Equal for two locations of the same server, as far as the settings show."""
    findings: tuple[Finding, ...] = ()
    quick: Location | None = field(default=None, repr=False)
    """A location for web pages: one attempt, short time-outs. None: use this one."""


@runtime_checkable
class ReadsLocation(Protocol):
    """A backend class that reads and checks its own settings. Others get ``plain_location``."""

    @classmethod
    def read_location(cls, given: GivenLocation, /) -> Location | SettingProblem: ...


@runtime_checkable
class HasOwnSettings(Protocol):
    """A backend class with settings that no other class has. It gets them in ``read_location``."""

    own_settings: ClassVar[tuple[str, ...]]
    """Their names, such as ``("REGION",)``."""


def own_settings_of(cls: type) -> tuple[str, ...]:
    """The names of the settings that only this class has."""
    return cls.own_settings if isinstance(cls, HasOwnSettings) else ()


def plain_location(given: GivenLocation) -> Location | SettingProblem:
    """For a class without ``read_location``: the URL and the options, unchanged."""
    if given.cache is not None:
        return SettingProblem("CACHE", "is not supported by this backend: give a LOCATION")
    if given.database is not None:
        return SettingProblem("DATABASE", "is not supported by this backend: give a LOCATION")
    if not isinstance(given.location, str) or "://" not in given.location:
        return SettingProblem("LOCATION", "must be a URL")
    return Location(given.location, given.options, store=given.location)
