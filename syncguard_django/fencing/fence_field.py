"""The column that holds a row's fence. No UPDATE that Django makes from it lowers the fence.

The law: an INSERT writes what is given; ``save()`` on a row that exists leaves the column as it
is; any other assignment (``update()``, ``bulk_update()``, a fixture that is loaded again) writes
the greater of the column and the value. Only ``Exactly`` writes a lower value.
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
    """A value that is written as it is, even where it lowers the fence."""

    def __init__(self, fence: str) -> None:
        super().__init__(fence, output_field=models.CharField())


class FenceAttribute(DeferredAttribute):
    """``row.fence``. After ``save()`` updated the row, it is read from the row when asked for.

    The row may carry a higher fence than the object knew. The field is not deferred for this as
    Django understands it: that would turn the next ``save()`` into one with ``update_fields``.
    """

    def __get__(self, instance: models.Model | None, cls: type[models.Model] | None = None) -> Any:
        if instance is not None and instance.__dict__.get(self._mark):
            # The database that was written to, not a replica. A row that is gone has no fence:
            # the last one known stays.
            with suppress(ObjectDoesNotExist):
                instance.refresh_from_db(using=instance._state.db, fields=[self.field.attname])
            self.trust(instance)
        return super().__get__(instance, cls)

    def __set__(self, instance: models.Model, value: object) -> None:
        instance.__dict__[self.field.attname] = value
        self.trust(instance)

    def trust(self, instance: models.Model) -> None:
        """What the object has is what the row has."""
        instance.__dict__.pop(self._mark, None)

    def doubt(self, instance: models.Model) -> None:
        """The row may have another fence than the object."""
        instance.__dict__[self._mark] = True

    def remember(self, instance: models.Model) -> dict[str, object]:
        """What the object has, for ``restore``."""
        names = (self.field.attname, self._mark)
        return {name: instance.__dict__[name] for name in names if name in instance.__dict__}

    def restore(self, instance: models.Model, remembered: dict[str, object]) -> None:
        for name in (self.field.attname, self._mark):
            instance.__dict__.pop(name, None)
        instance.__dict__.update(remembered)

    @property
    def _mark(self) -> str:
        return f"_{self.field.attname}_in_doubt"


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
            attribute.trust(model_instance)
            return super().pre_save(model_instance, add)
        attribute.doubt(model_instance)
        # The greater of the column and the lowest fence is the column. An expression would make
        # Django 6 defer the field on a database without UPDATE ... RETURNING.
        return NO_FENCE

    def get_placeholder(
        self, value: object, compiler: SQLCompiler, connection: BaseDatabaseWrapper
    ) -> str:
        """Django 5.2: the SQL for a value, with ``%s`` in its place."""
        column = getattr(self, "column", None)  # a field of no model has none
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
    """The attribute through which objects of the model read and set their fence."""
    attribute = getattr(model, name)
    assert isinstance(attribute, FenceAttribute)
    return attribute


@contextmanager
def carrying(rows: Iterable[models.Model], fence: str) -> Iterator[None]:
    """The objects carry the fence; if the block fails, what they had before."""
    before = [(row, attribute_of(type(row)).remember(row)) for row in rows]
    for row, _ in before:
        attribute_of(type(row)).__set__(row, fence)
    try:
        yield
    except BaseException:
        for row, remembered in before:
            attribute_of(type(row)).restore(row, remembered)
        raise
    for row, _ in before:
        attribute_of(type(row)).__set__(row, fence)
