"""The names of the tables and functions in the database, validated.

A name becomes a part of SQL statements, so only plain identifiers are accepted.
"""

from __future__ import annotations

import re
from typing import Final

from syncguard._sql.table_names import (
    DEFAULT_FENCES_TABLE,
    DEFAULT_LOCKS_TABLE,
    refuse_typescript_table,
)
from syncguard.errors import invalid_argument

FUNCTIONS: Final = ("acquire", "release", "extend", "adopt", "undo")
"""Each is named after the table of the locks: ``{locks}_acquire``."""

_IDENTIFIER: Final = re.compile(r"(?:[a-z_][a-z0-9_]*\.)?[a-z_][a-z0-9_]*")
_LONGEST: Final = 63 - len("_acquire")
"""PostgreSQL cuts identifiers off after 63 bytes; a cut name could be that of another table."""


class Tables:
    """The two tables of a backend, and the functions beside them."""

    def __init__(
        self, locks: str = DEFAULT_LOCKS_TABLE, fences: str = DEFAULT_FENCES_TABLE
    ) -> None:
        self.locks: Final = _validated("locks_table", locks)
        self.fences: Final = _validated("fences_table", fences)
        if self.locks == self.fences:
            raise invalid_argument("locks_table and fences_table must be two different tables")

    @property
    def names(self) -> dict[str, str]:
        """What the statements insert, quoted."""
        functions = {name: quoted(f"{self.locks}_{name}") for name in FUNCTIONS}
        return {"locks": quoted(self.locks), "fences": quoted(self.fences), **functions}


def quoted(name: str) -> str:
    """A validated name as an SQL identifier."""
    return ".".join(f'"{part}"' for part in name.split("."))


def _validated(option: str, name: str) -> str:
    if not isinstance(name, str) or _IDENTIFIER.fullmatch(name) is None:
        raise invalid_argument(
            f"{option} must be a name of a-z, 0-9 and _ that starts with no digit, with or without"
            " a schema and a dot before it"
        )
    if any(len(part) > _LONGEST for part in name.split(".")):
        raise invalid_argument(f"{option} must have at most {_LONGEST} characters")
    refuse_typescript_table(option, name)
    return name
