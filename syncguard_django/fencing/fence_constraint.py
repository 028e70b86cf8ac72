"""``FenceNeverDecreases``: the database itself refuses a lower fence in any statement.

Installs a trigger on the table that has the column. It is an entry of ``Meta.constraints``, and
not a migration operation: SQLite loses triggers when Django rebuilds a table, and Django creates
only indexes and constraints again. This module does not depend on fenced writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.core.checks import CheckMessage, Warning
from django.core.exceptions import ImproperlyConfigured
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.backends.ddl_references import Columns, Statement, Table

from syncguard_django.fencing.fence_field import FenceField

_MESSAGE: Final = "the fence of a row never decreases"

# The driver or Django turns each of these errors into IntegrityError.
_CREATE: Final = {
    "postgresql": (
        "CREATE OR REPLACE FUNCTION %(name)s() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$BEGIN RAISE EXCEPTION '{_MESSAGE}' USING ERRCODE = 'check_violation',"
        " CONSTRAINT = TG_NAME, TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA; END$$;"
        " CREATE TRIGGER %(name)s BEFORE UPDATE ON %(table)s FOR EACH ROW"
        " WHEN (NEW.%(column)s < OLD.%(column)s) EXECUTE FUNCTION %(name)s()"
    ),
    "sqlite": (
        "CREATE TRIGGER %(name)s BEFORE UPDATE ON %(table)s FOR EACH ROW"
        " WHEN NEW.%(column)s < OLD.%(column)s"
        f" BEGIN SELECT RAISE(ABORT, '{_MESSAGE}'); END"
    ),
    "mysql": (
        "CREATE TRIGGER %(name)s BEFORE UPDATE ON %(table)s FOR EACH ROW"  # noqa: S608
        " IF NEW.%(column)s < OLD.%(column)s THEN"
        f" SIGNAL SQLSTATE '23000' SET MYSQL_ERRNO = 4025, MESSAGE_TEXT = '{_MESSAGE}'; END IF"
    ),
}
_REMOVE: Final = {
    "postgresql": "DROP TRIGGER %(name)s ON %(table)s; DROP FUNCTION %(name)s()",
    "sqlite": "DROP TRIGGER %(name)s",
    "mysql": "DROP TRIGGER %(name)s",
}


class FenceNeverDecreases(models.BaseConstraint):
    """For ``Meta.constraints``: the database refuses to lower a fence, with IntegrityError."""

    def __init__(self, *, name: str) -> None:
        super().__init__(name=name)

    def constraint_sql(  # type: ignore[override]
        self, model: type[models.Model], schema_editor: BaseDatabaseSchemaEditor
    ) -> None:
        """Add nothing to CREATE TABLE. The trigger is created when the table has its final name."""
        statement = self.create_sql(model, schema_editor)
        if statement is not None:
            schema_editor.deferred_sql.append(statement)

    def create_sql(  # type: ignore[override]
        self, model: type[models.Model], schema_editor: BaseDatabaseSchemaEditor
    ) -> Statement | None:
        return self._statement(_CREATE, model, schema_editor)

    def remove_sql(  # type: ignore[override]
        self, model: type[models.Model], schema_editor: BaseDatabaseSchemaEditor
    ) -> Statement | None:
        return self._statement(_REMOVE, model, schema_editor)

    def validate(self, *_args: Any, **_options: Any) -> None:
        """Do nothing: writes through Django never lower a fence."""

    def check(
        self, model: type[models.Model], connection: BaseDatabaseWrapper
    ) -> list[CheckMessage]:
        """Called for the databases that ``check --database`` and ``migrate`` name."""
        if connection.vendor in _CREATE:
            return []
        return [
            Warning(
                f"{connection.display_name} has no trigger for the constraint '{self.name}':"
                " raw SQL can lower a fence there.",
                hint="FenceNeverDecreases works on PostgreSQL, SQLite, MySQL and MariaDB.",
                obj=model,
                id="syncguard.W021",
            )
        ]

    _check = check  # its name in Django 5.2

    def deconstruct(self) -> tuple[str, Sequence[Any], dict[str, Any]]:
        return "syncguard_django.fencing.FenceNeverDecreases", (), {"name": self.name}

    def __eq__(self, other: object) -> bool:
        if isinstance(other, FenceNeverDecreases):
            return self.name == other.name
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<FenceNeverDecreases: name={self.name!r}>"

    def _statement(
        self,
        templates: dict[str, str],
        model: type[models.Model],
        schema_editor: BaseDatabaseSchemaEditor,
    ) -> Statement | None:
        template = templates.get(schema_editor.connection.vendor)
        if template is None:
            return None
        field = fence_field_of(model)
        if field is None or field.column is None:
            raise ImproperlyConfigured(
                f"the constraint '{self.name}' belongs to the model that has the FenceField"
            )
        table, quote = model._meta.db_table, schema_editor.quote_name
        # Django updates these references when it renames the table or the column.
        return Statement(
            template,
            name=quote(self.name),
            table=Table(table, quote),
            column=Columns(table, [field.column], quote),
        )


def fence_field_of(model: type[models.Model]) -> FenceField | None:
    """The field whose column is in the model's own table."""
    for field in model._meta.local_concrete_fields:
        if isinstance(field, FenceField):
            return field
    return None
