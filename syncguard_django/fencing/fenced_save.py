"""Writes one fenced row: claims it (``row_claims``), then saves it with Django's own ``save()``.

``FencedModel`` and ``FencedQuerySet`` use it, so it imports neither. Any model with a ``fence``
works.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from django.db import DatabaseError, IntegrityError, models, transaction

from syncguard_django.fencing.fence_field import assigned_fence
from syncguard_django.fencing.row_claims import (
    claim,
    is_inherited,
    key_in_owner,
    linked_key_in_owner,
    owner_of,
)


def save_row(
    row: models.Model, fence: str, using: str, update_fields: Iterable[str] | None
) -> None:
    """Update the row, or insert it if there is none. Raises StaleFence for a higher fence."""
    if update_fields is not None:
        update_fields = {*update_fields, "fence"}
    with _assigned_fence(row, fence), transaction.atomic(using=using):
        if not claim_row(row, fence, using):
            if update_fields is not None:
                raise getattr(row, "NotUpdated", DatabaseError)(
                    "save_fenced() with update_fields did not affect any rows."
                )
            if _insert(row, fence, using):
                return
        _save_claimed(row, using, update_fields)


def create_row(row: models.Model, fence: str, using: str) -> None:
    """Insert the row, for ``fenced(...).create()``. Raises IntegrityError if it exists."""
    with _assigned_fence(row, fence), transaction.atomic(using=using):
        if is_inherited(type(row)) and claim_row(row, fence, using):
            # The parent exists without this child: update the parent, insert the child.
            row._state.adding = False
            row.save(using=using, force_insert=True)
        else:
            _save_new(row, using)


def claim_row(row: models.Model, fence: str, using: str) -> bool:
    """Set the fence of the row, which locks it. False: there is no row yet."""
    owner, key = owner_of(type(row)), key_in_owner(row)
    linked = linked_key_in_owner(row, using)
    if linked not in (None, key):
        claim(owner, [linked], fence, using)
    return key is not None and claim(owner, [key], fence, using) == 1


def _insert(row: models.Model, fence: str, using: str) -> bool:
    """Save as a new row. False: another holder inserted it first, and the row is now claimed."""
    try:
        with transaction.atomic(using=using):
            _save_new(row, using)
    except IntegrityError:
        if not claim_row(row, fence, using):
            raise
        return False
    return True


def _save_new(row: models.Model, using: str) -> None:
    # Force the insert also of the row that has the fence: by default Django first tries to
    # update the parents, and would update a row that another holder inserted meanwhile.
    owner = owner_of(type(row))
    row.save(using=using, force_insert=(owner,) if is_inherited(type(row)) else True)


def _save_claimed(row: models.Model, using: str, update_fields: Iterable[str] | None) -> None:
    # The row with the fence exists, even if this object was not read from it. The row of a child
    # model may not exist.
    row._state.adding = False
    alone = not is_inherited(type(row))
    row.save(using=using, force_update=alone, update_fields=update_fields)


@contextmanager
def _assigned_fence(row: models.Model, fence: str) -> Iterator[None]:
    """Set the fence of the object. If the block fails, restore the object."""
    adding = row._state.adding
    try:
        with assigned_fence([row], fence):
            yield
    except BaseException:
        row._state.adding = adding
        raise
