"""Loads ``sql/*.sql`` and inserts the names of the tables. Every statement is in one of the files.

A file that creates a function also says how it is called here: ``SELECT * FROM f(...)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Final

from syncguard._sql.names import KEY_LIMIT_BYTES
from syncguard.postgres.table_names import FUNCTIONS, Tables

LOCK_TIMEOUT_MS: Final = 3_000
"""How long a function waits for a row that another statement has locked: normally below 1 ms."""

_IS_OWN: Final = (
    f"(l.key = key_head || l.user_key OR (octet_length(key_head || l.user_key) > {KEY_LIMIT_BYTES}"
    " AND starts_with(l.key, key_head)))"
)
"""Whether a row belongs to this prefix, and not to another one such as ``prefix:more``.

A name that is too long is stored hashed, and then only its beginning can be compared."""

_ARGUMENTS: Final = {"acquire": 11, "release": 3, "extend": 3, "adopt": 5, "undo": 3}
_QUERIES: Final = (
    "cleanup",
    "count_fences",
    "find_live_locks",
    "health",
    "is_locked",
    "is_set_up",
    "live_locks",
    "lookup_by_id",
    "lookup_by_key",
    "notify",
)


@dataclass(frozen=True, slots=True)
class Statement:
    """The text of a statement. ``name`` identifies it, also as a prepared statement."""

    name: str
    text: bytes


class Statements:
    """All statements for two tables."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        names = tables.names
        made: dict[str, bytes] = {
            name: f"SELECT * FROM {names[name]}({_places(count)})".encode()  # noqa: S608 - validated
            for name, count in _ARGUMENTS.items()
        }
        made |= {name: _filled(name, tables).encode() for name in _QUERIES}
        self._made: Final = {name: Statement(name, text) for name, text in made.items()}

    def __iter__(self) -> Iterator[Statement]:
        return iter(self._made.values())

    def __getitem__(self, name: str) -> Statement:
        return self._made[name]


def setup_sql(tables: Tables) -> str:
    """Everything that ``setup()`` executes, as text: tables and functions.

    Executing it again changes nothing, except that functions of an older version are replaced.
    """
    return "\n".join(_filled(name, tables) for name in ("tables", *FUNCTIONS))


def drop_sql(tables: Tables) -> str:
    """Removes what ``setup()`` made, with all locks and fence counters: for reverse migrations."""
    names = tables.names
    functions = ", ".join(names[name] for name in FUNCTIONS)
    return (
        f"DROP FUNCTION IF EXISTS {functions};\n"
        f"DROP TABLE IF EXISTS {names['locks']}, {names['fences']};\n"
    )


def protect_sql(tables: Tables) -> str:
    """The statement of ``protect.sql``, for another connection. ``%s`` is the lock id."""
    lines = _filled("protect", tables).splitlines()
    return "\n".join(line for line in lines if not line.startswith("--"))


def _places(count: int) -> str:
    return ", ".join(f"${place}" for place in range(1, count + 1))


def _filled(name: str, tables: Tables) -> str:
    text = _file(name)
    others = {"lock_timeout": f"'{LOCK_TIMEOUT_MS}ms'", "is_own": _IS_OWN}
    for placeholder, value in {**tables.names, **others}.items():
        text = text.replace(f"{{{placeholder}}}", value)
    return text


@lru_cache
def _file(name: str) -> str:
    return resources.files(__package__).joinpath("sql").joinpath(f"{name}.sql").read_text("utf-8")
