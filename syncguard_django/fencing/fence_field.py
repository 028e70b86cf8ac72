"""The column that holds a row's fence. No UPDATE that Django makes from it lowers the fence.

The rule: an INSERT writes the given value; ``save()`` of an existing row does not change the
column; any other assignment (``update()``, ``bulk_update()``, a fixture that is loaded again)
writes the greater of the column and the value. Only ``Exactly`` writes a lower value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, cast

from django.core.exceptions import ObjectDoesNotExist
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.query_utils import DeferredAttribute
from django.db.models.sql.compiler import SQLCompiler, SQLUpdateCompiler

from syncguard_django.fencing.fence_values import NO_FENCE
from syncguard_django.models import FENCE_DIGITS

if TYPE_CHECKING:
    _CharField = models.CharField[str, str]
else:
    _CharField = models.CharField

_OPTIONS: Final[dict[str, object]] = {
    "max_length": FENCE_DIGITS,
    "default": NO_FENCE,
    "editable": False,
}


class Exactly(models.Value):
    """A value that is written unchanged, even if it lowers the fence."""

    def __init__(self, fence: str) -> None:
        super().__init__(fence, output_field=models.CharField())


class FenceAttribute(DeferredAttribute):
    """``row.fence``. After ``save()`` has updated the row, the next access reads the database.

    The row may carry a higher fence than the object. The field is not deferred with Django's own
    mechanism: the next ``save()`` would then behave like one with ``update_fields``.
    """

    def __get__(self, instance: models.Model | None, cls: type[models.Model] | None = None) -> Any:
        if instance is not None and instance.__dict__.get(self._outdated_flag):
            # Read from the database that was written to, not from a replica. If the row no longer
            # exists, keep the last known value.
            with suppress(ObjectDoesNotExist):
                instance.refresh_from_db(using=instance._state.db, fields=[self.field.attname])
            self.mark_up_to_date(instance)
        return super().__get__(instance, cls)

    def __set__(self, instance: models.Model, value: object) -> None:
        instance.__dict__[self.field.attname] = value
        self.mark_up_to_date(instance)

    def mark_up_to_date(self, instance: models.Model) -> None:
        """The object has the same fence as the row."""
        instance.__dict__.pop(self._outdated_flag, None)

    def mark_outdated(self, instance: models.Model) -> None:
        """The row may have a different fence than the object."""
        instance.__dict__[self._outdated_flag] = True

    def snapshot(self, instance: models.Model) -> dict[str, object]:
        """The state of the object, for ``restore``."""
        names = (self.field.attname, self._outdated_flag)
        return {name: instance.__dict__[name] for name in names if name in instance.__dict__}

    def restore(self, instance: models.Model, saved: dict[str, object]) -> None:
        for name in (self.field.attname, self._outdated_flag):
            instance.__dict__.pop(name, None)
        instance.__dict__.update(saved)

    @property
    def _outdated_flag(self) -> str:
        return f"_{self.field.attname}_outdated"


class FenceField(_CharField):
    """The fence of the holder that wrote the row last. ``FencedModel`` has one."""

    description = "The fence of the holder that wrote the row last"
    descriptor_class = FenceAttribute

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**_OPTIONS, **options})

    def deconstruct(self) -> tuple[str, str, Sequence[Any], dict[str, Any]]:
        name, _, args, options = super().deconstruct()
        for option, usual in _OPTIONS.items():
            options.pop(option, None)
            if getattr(self, option) != usual:
                options[option] = getattr(self, option)
        return name, "syncguard_django.fencing.FenceField", args, options

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:
        attribute = attribute_of(type(model_instance), self.attname)
        if add:
            attribute.mark_up_to_date(model_instance)
            return super().pre_save(model_instance, add)
        attribute.mark_outdated(model_instance)
        # The UPDATE writes the greater of the column and this lowest fence: the column stays as it
        # is. With an expression, Django 6 would defer the field on a database without
        # UPDATE ... RETURNING.
        return NO_FENCE

    def get_placeholder(
        self, value: object, compiler: SQLCompiler, connection: BaseDatabaseWrapper
    ) -> str:
        """Django 5.2: the SQL for a value, with ``%s`` in its place."""
        column = getattr(self, "column", None)  # a field without a model has none
        is_update = isinstance(compiler, SQLUpdateCompiler) and not isinstance(value, Exactly)
        if column is None or not is_update:
            return "%s"
        greatest = "MAX" if connection.vendor == "sqlite" else "GREATEST"
        return f"{greatest}({connection.ops.quote_name(column)}, %s)"

    def get_placeholder_sql(
        self, value: object, compiler: SQLCompiler, connection: BaseDatabaseWrapper
    ) -> tuple[str, Sequence[object]]:
        """Django 6.1 and newer: the SQL for a value, and its parameters."""
        placeholder = self.get_placeholder(value, compiler, connection)
        if hasattr(value, "as_sql"):
            sql, parameters = compiler.compile(cast("models.Value", value))
            return placeholder % sql, parameters
        return placeholder, (value,)


def attribute_of(model: type[models.Model], name: str = "fence") -> FenceAttribute:
    """The descriptor that reads and sets the fence of the model's objects."""
    attribute = getattr(model, name)
    assert isinstance(attribute, FenceAttribute)
    return attribute


@contextmanager
def assigned_fence(rows: Iterable[models.Model], fence: str) -> Iterator[None]:
    """Set the fence of the objects. If the block fails, restore what they had before."""
    before = [(row, attribute_of(type(row)).snapshot(row)) for row in rows]
    for row, _ in before:
        attribute_of(type(row)).__set__(row, fence)
    try:
        yield
    except BaseException:
        for row, saved in before:
            attribute_of(type(row)).restore(row, saved)
        raise
    for row, _ in before:
        attribute_of(type(row)).__set__(row, fence)
