"""The ``SYNCGUARD`` setting, read once into frozen, typed objects.

Reading collects every problem instead of stopping at the first: checks show them all, and
``Configuration.of`` raises the first problem of the requested alias. No I/O. The text of a problem
never contains a value: it may be a password.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Literal, get_args

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from syncguard import DEFAULT_KEY_PREFIX, DEFAULT_TTL_MS, Acquisition, LockError, backends
from syncguard.backend import (
    BackendClass,
    GivenLocation,
    Location,
    RedactedUrl,
    Secret,
    SettingProblem,
    own_settings_of,
)
from syncguard_django.key_hash_secrets import DerivedSecrets, derived_secrets

DEFAULT_ALIAS: Final = "default"
SETTING: Final = "SYNCGUARD"

KNOWN: Final = (  # and those of the backend's class: own_settings_of
    "BACKEND",
    "LOCATION",
    "CACHE",
    "DATABASE",
    "KEY_PREFIX",
    "TTL_MS",
    "ACQUISITION",
    "OPTIONS",
    "HASH_SECRET",
    "SHOW_KEYS",
    "FENCE_FLOOR",
    "TELEMETRY",
    "HOLD_UNTIL",
)

FenceFloor = Literal["clock"]
Until = Literal["transaction", "block"]
"""When a lock is released: when the transaction around its block ends, or when the block ends."""

UNTIL: Final[tuple[Until, ...]] = get_args(Until)

NO_SECRETS: Final = DerivedSecrets()
NO_DATABASES: Final[Mapping[str, Any]] = {}
ProblemKind = Literal["shape", "unknown", "value", "cache", "database", "import"]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong in the setting: where, and what was expected."""

    kind: ProblemKind
    where: str
    expected: str
    hint: str | None = None

    def __str__(self) -> str:
        return f"{self.where} {self.expected}"


@dataclass(frozen=True, slots=True)
class AliasSettings:
    """One alias, checked and complete."""

    alias: str
    backend: str
    """The name of its class for ``syncguard.backends``: a dotted path or a URL's scheme."""
    backend_class: type[BackendClass]
    location: Location
    """As the backend class reads it."""
    database: str | None
    """The alias in ``DATABASES`` whose database has the locks."""
    database_name: object = field(repr=False)
    """The name of that database when the setting was read."""
    key_prefix: str
    ttl_ms: int
    acquisition: Acquisition
    hash_secret: str | bytes | None = field(repr=False)
    """For the hashes that are shown. None: the hashes of the specification."""
    former_hash_secrets: tuple[bytes, ...] = field(repr=False)
    """The secrets before ``SECRET_KEY`` changed. Used only to find locks by older hashes."""
    show_keys: bool
    fence_floor: FenceFloor | None
    """``"clock"`` by default, where the backend has it: ADR-058."""
    telemetry: bool
    hold_until: Until

    @property
    def options(self) -> Mapping[str, object]:
        """For the backend, in addition to the settings that every backend has."""
        return self.location.options

    @property
    def is_outdated(self) -> bool:
        """Whether Django has changed the name of the database since, as test runners do."""
        if self.database is None:
            return False
        return bool(connections.settings[self.database]["NAME"] != self.database_name)


@dataclass(frozen=True, slots=True)
class Configuration:
    """Every valid alias, and the problems of the others."""

    aliases: Mapping[str, AliasSettings]
    problems: Mapping[str, tuple[Problem, ...]]
    """By alias. The empty name has the problems of the whole setting."""

    def of(self, alias: str) -> AliasSettings:
        for problem in (*self.problems.get("", ()), *self.problems.get(alias, ())):
            end = "" if str(problem).endswith("?") else "."
            raise ImproperlyConfigured(f"{problem}{end} {problem.hint or ''}".rstrip())
        try:
            return self.aliases[alias]
        except KeyError:
            raise ImproperlyConfigured(
                f"{SETTING} has no alias {alias!r}; it has {', '.join(self.aliases) or 'none'}"
            ) from None

    @property
    def names(self) -> tuple[str, ...]:
        """Every alias: the valid ones, then those with problems."""
        return tuple(dict.fromkeys((*self.aliases, *filter(None, self.problems))))


@cache
def configuration() -> Configuration:
    """The current setting. After ``forget`` the next call reads it again."""
    setting, caches = getattr(settings, SETTING, None), getattr(settings, "CACHES", {})
    return read(setting, caches, derived_secrets(), connections.settings)


forget = configuration.cache_clear


def hide_passwords() -> None:
    """Replace the addresses in the setting by ones whose repr hides the password.

    In place: Django's debug page shows the setting itself. It hides values named ``PASSWORD``, but
    not a password inside a ``LOCATION``.
    """
    for entry in _entries(getattr(settings, SETTING, None)).values():
        if not isinstance(entry, dict):
            continue
        if type(entry.get("LOCATION")) is str:
            entry["LOCATION"] = RedactedUrl(entry["LOCATION"])
        options = entry.get("OPTIONS")
        if isinstance(options, dict):
            for name, value in options.items():
                if type(value) is str and "://" in value:
                    options[name] = RedactedUrl(value)


def read(
    setting: object,
    caches: Mapping[str, object],
    secrets: DerivedSecrets = NO_SECRETS,
    databases: Mapping[str, Any] = NO_DATABASES,
) -> Configuration:
    """Read a value of the setting. Imports the classes of backends; no I/O otherwise."""
    if not isinstance(setting, Mapping) or not setting:
        expected = 'must be a dictionary of aliases, such as {"default": {"LOCATION": "redis://"}}'
        return Configuration({}, {"": (Problem("shape", SETTING, expected),)})
    aliases: dict[str, AliasSettings] = {}
    problems: dict[str, tuple[Problem, ...]] = {}
    for alias, entry in setting.items():
        if not isinstance(alias, str) or not isinstance(entry, Mapping):
            expected = "must be a dictionary of settings, under a name that is a str"
            problems[str(alias)] = (Problem("shape", f"{SETTING}[{alias!r}]", expected),)
            continue
        reader = _Reader(alias, entry, caches, secrets, databases)
        parsed = reader.read()
        if reader.problems:
            problems[alias] = tuple(reader.problems)
        else:
            aliases[alias] = parsed
    return Configuration(aliases, problems)


class _Reader:
    """Reads one alias. Records each problem, and continues with the default."""

    def __init__(
        self,
        alias: str,
        entry: Mapping[str, Any],
        caches: Mapping[str, object],
        secrets: DerivedSecrets,
        databases: Mapping[str, Any],
    ) -> None:
        self._alias = alias
        self._entry = entry
        self._caches = caches
        self._secrets = secrets
        self._databases = databases
        self.problems: list[Problem] = []

    def read(self) -> AliasSettings:
        setting, name = self._backend_name()
        cls = self._backend_class(setting, name)
        location = Location("") if cls is BackendClass else self._location(cls)
        database = self._entry.get("DATABASE")
        return AliasSettings(
            alias=self._alias,
            backend=name,
            backend_class=cls,
            location=location,
            database=database,
            database_name=_name_of(self._databases, database),
            key_prefix=self._value("KEY_PREFIX", DEFAULT_KEY_PREFIX, "a non-empty str", _is_text),
            ttl_ms=self._value(
                "TTL_MS", DEFAULT_TTL_MS, "a whole number of milliseconds above 0", _is_positive
            ),
            acquisition=self._acquisition(),
            hash_secret=self._hash_secret(),
            former_hash_secrets=() if "HASH_SECRET" in self._entry else self._secrets.former,
            show_keys=self._flag("SHOW_KEYS"),
            fence_floor=self._fence_floor(cls),
            telemetry=self._flag("TELEMETRY"),
            hold_until=self._value(
                "HOLD_UNTIL", "transaction", "'transaction' or 'block'", lambda v: v in UNTIL
            ),
        )

    def _backend_class(self, setting: str, name: str) -> type[BackendClass]:
        """The class that the alias names. ``BackendClass`` itself if there is none."""
        try:
            cls = backends.backend_class(name)
        except LockError as error:
            kind: ProblemKind = "import" if isinstance(error.__cause__, ImportError) else "value"
            self._wrong(setting, f"cannot be used: {error}", kind)
            return BackendClass
        for given in self._entry:
            if given not in (known := (*KNOWN, *own_settings_of(cls))):
                self._unknown(str(given), known)
        return cls

    def _location(self, cls: type[BackendClass]) -> Location:
        """The location as the class reads it."""
        cache = self._value("CACHE", None, "the name of a CACHES entry", _is_optional_text)
        database = self._value("DATABASE", None, "the name of a DATABASES entry", _is_optional_text)
        options = self._value("OPTIONS", {}, "a dictionary of client options", _is_options)
        own = {name: self._entry[name] for name in own_settings_of(cls) if name in self._entry}
        named = ("LOCATION" in self._entry) + (cache is not None) + (database is not None)
        if named > 1 or not (named or own):
            self._wrong("LOCATION", "or CACHE or DATABASE must be given, and only one of them")
            return Location("")
        if cache is not None and cache not in self._caches:
            self._wrong("CACHE", "must be the name of a CACHES entry", "cache")
            return Location("")
        if database is not None and database not in self._databases:
            self._wrong("DATABASE", "must be the name of a DATABASES entry", "database")
            return Location("")
        found = backends.read_location(
            cls,
            GivenLocation(
                location=self._entry.get("LOCATION"),
                options=options,
                cache=None if cache is None else self._caches[cache],
                caches=self._caches,
                database=None if database is None else self._databases[database],
                own=own,
                fence_floor=self._entry.get("FENCE_FLOOR", _default_floor(cls)) is not None,
            ),
        )
        if isinstance(found, SettingProblem):
            kinds: dict[str, ProblemKind] = {"CACHE": "cache", "DATABASE": "database"}
            self._wrong(found.setting, found.expected, kinds.get(found.setting, "value"))
            return Location("")
        return found

    def _backend_name(self) -> tuple[str, str]:
        """The setting that determines the class, and the name of the class."""
        if "BACKEND" in self._entry:
            expected = "a dotted path to a class"
            return "BACKEND", self._value("BACKEND", backends.DEFAULT_BACKEND, expected, _is_text)
        try:
            return "LOCATION", backends.scheme_of(self._entry.get("LOCATION"))
        except LockError:  # not a URL: the default backend reports what it expects
            return "BACKEND", backends.DEFAULT_BACKEND

    def _fence_floor(self, cls: type[BackendClass]) -> FenceFloor | None:
        floor: FenceFloor | None = self._value(
            "FENCE_FLOOR", _default_floor(cls), "'clock' or None", lambda v: v in (None, "clock")
        )
        return floor

    def _hash_secret(self) -> str | bytes | None:
        if "HASH_SECRET" not in self._entry:
            return self._secrets.current
        secret: str | bytes | None = _as_secret(
            self._value("HASH_SECRET", None, "a non-empty str or bytes, or None", _is_secret)
        )
        return secret

    def _acquisition(self) -> Acquisition:
        values = self._value("ACQUISITION", {}, "a dictionary", _is_options)
        try:
            return Acquisition(**values)
        except LockError as error:
            self._wrong("ACQUISITION", f"is not valid: {error}")
        except TypeError:
            known = ", ".join(Acquisition.__dataclass_fields__)
            self._wrong("ACQUISITION", f"may contain only {known}")
        return Acquisition()

    def _value(self, name: str, default: Any, expected: str, is_right: Any) -> Any:
        value = self._entry.get(name, default)
        if is_right(value):
            return value
        self._wrong(name, f"must be {expected}")
        return default

    def _flag(self, name: str) -> bool:
        value: bool = self._value(name, False, "True or False", lambda v: isinstance(v, bool))
        return value

    def _wrong(self, name: str, expected: str, kind: ProblemKind = "value") -> None:
        self.problems.append(Problem(kind, self._where(name), expected))

    def _unknown(self, name: str, known: tuple[str, ...]) -> None:
        close = difflib.get_close_matches(name.upper(), known, n=1)
        hint = f"Did you mean {close[0]}?" if close else f"The settings are {', '.join(known)}."
        self.problems.append(
            Problem("unknown", self._where(name), "is not a setting of SyncGuard", hint)
        )

    def _where(self, name: str) -> str:
        return f'{SETTING}["{self._alias}"]["{name}"]'


def _default_floor(cls: type[BackendClass]) -> FenceFloor | None:
    takes_one = "fence_floor" in inspect.signature(cls.from_url).parameters
    return "clock" if takes_one else None


def _name_of(databases: Mapping[str, Any], alias: object) -> object:
    return databases[alias].get("NAME") if isinstance(alias, str) and alias in databases else None


def _entries(setting: object) -> Mapping[object, object]:
    return setting if isinstance(setting, Mapping) else {}


def _as_secret(value: Any) -> Any:
    return Secret(value) if isinstance(value, str) else value


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_optional_text(value: object) -> bool:
    return value is None or _is_text(value)


def _is_secret(value: object) -> bool:
    return value is None or (isinstance(value, str | bytes) and bool(value))


def _is_positive(value: object) -> bool:
    return type(value) is int and value > 0


def _is_options(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)
