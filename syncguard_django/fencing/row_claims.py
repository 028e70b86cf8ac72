"""The claim: the one statement that decides whether a holder may write a row.

``UPDATE owner SET fence = x WHERE pk IN (...) AND fence <= x``, on the model that owns the column
(with multi-table inheritance, the parent), inside a transaction. A claimed row is locked until
the transaction ends, and carries the fence of the claimer. Nothing here writes anything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeVar

from django.db import connections, models

from syncguard_django.fencing.fence_regression import report_row
from syncguard_django.fencing.fence_values import StaleFence

BATCH: Final = 500
"""Keys per statement: every database accepts this many parameters."""

T = TypeVar("T")


def owner_of(model: type[models.Model]) -> type[models.Model]:
    """The model whose table has the column ``fence``."""
    owner = model._meta.get_field("fence").model._meta.concrete_model
    assert owner is not None
    return owner


def is_inherited(model: type[models.Model]) -> bool:
    """Whether the column is in the table of a parent (multi-table inheritance)."""
    return owner_of(model) is not model._meta.concrete_model


def key_in_owner(row: models.Model) -> Any:
    """The primary key of the row in the table that has the fence; None if it has none yet."""
    return _key_in(owner_of(type(row)), row)


def _key_in(parent: type[models.Model], row: models.Model) -> Any:
    """The primary key of the row in the table of a parent, or in its own table."""
    key = row._get_pk_val(parent._meta)
    for step in reversed(row._meta.get_path_to_parent(parent)):
        if key is not None:
            break
        # Child(pk=7) sets the link to the parent, and not the parent's own key.
        key = getattr(row, step.join_field.attname)
        if not step.join_field.primary_key:
            break  # the links of grandchildren name the child's own key, which is another
    if isinstance(key, tuple) and None in key:
        return None
    return key


def linked_key_in_owner(row: models.Model, using: str) -> Any:
    """The key of the parent that the stored row of a child links to; None if there is none.

    Only asked for a child whose primary key is not its link: an object that was not read from the
    database, Child(pk=7), does not know the parent, and ``save()`` would link it to another one.
    """
    owner = owner_of(type(row))
    for step in row._meta.get_path_to_parent(owner):
        if not step.join_field.primary_key:
            child = step.join_field.model
            stored = child._base_manager.using(using).filter(pk=_key_in(child, row))
            return stored.values_list(owner._meta.pk.name, flat=True).first()
    return None


def claim(owner: type[models.Model], keys: Iterable[Any], fence: str, using: str) -> int:
    """Set the fence of these rows, which locks them. Returns how many; raises ``StaleFence``."""
    claimed = 0
    for batch in batches(keys):
        rows = owner._base_manager.using(using).filter(pk__in=batch)
        stamped = rows.filter(fence__lte=fence).update(fence=fence)
        if stamped < len(batch):
            refuse_if_higher(rows, fence, using)
        claimed += stamped
    return claimed


def refuse_if_higher(rows: models.QuerySet[Any], fence: str, using: str) -> None:
    """Raise ``StaleFence`` if one of the rows carries a higher fence."""
    higher = rows.filter(fence__gt=fence).order_by("-fence")
    if connections[using].vendor == "mysql":
        # At REPEATABLE READ, MySQL's UPDATE reads the current rows, and a plain SELECT reads the
        # rows as they were when the transaction began. A locking SELECT reads the current rows.
        higher = higher.select_for_update()
    seen = higher.values_list("fence", flat=True).first()
    if seen is not None:
        report_row(fence, seen)
        raise StaleFence(fence, seen)


def batches(keys: Iterable[T]) -> Iterator[list[T]]:
    """The keys, each once, in lists that fit into one statement."""
    left = iter(dict.fromkeys(keys))
    while batch := list(islice(left, BATCH)):
        yield batch
