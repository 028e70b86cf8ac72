"""The names of the two tables: the defaults, and those that belong to somebody else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from syncguard._backend.settings import SettingProblem
from syncguard.errors import invalid_argument

DEFAULT_LOCKS_TABLE: Final = "syncguard_py_locks"
DEFAULT_FENCES_TABLE: Final = "syncguard_py_fences"

TYPESCRIPT_TABLES: Final = frozenset({"syncguard_locks", "syncguard_fence_counters"})
"""The tables of SyncGuard for TypeScript. It locks them in another way: sharing them is unsafe."""


def refuse_typescript_table(option: str, name: str) -> None:
    """Raise InvalidArgument for a table of SyncGuard for TypeScript, in any schema."""
    if _is_typescripts(name):
        raise invalid_argument(
            f"{option} must not be a table of SyncGuard for TypeScript: it locks its rows in"
            " another way, and the same lock could have two holders"
        )


def problem_of_tables(options: Mapping[str, object]) -> SettingProblem | None:
    """The same for the settings of a project, before a backend is made."""
    for option in ("locks_table", "fences_table"):
        if _is_typescripts(str(options.get(option, ""))):
            return SettingProblem(
                "OPTIONS",
                f"must not name, as {option}, a table of SyncGuard for TypeScript: the same lock"
                " could have two holders",
            )
    return None


def _is_typescripts(name: str) -> bool:
    return name.rpartition(".")[2].lower() in TYPESCRIPT_TABLES
