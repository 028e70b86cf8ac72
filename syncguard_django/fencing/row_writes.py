"""Writing one fenced row: claim it (``row_claims``), then save it by Django's own ``save()``.

Used by ``FencedModel`` and ``FencedQuerySet``, so it knows neither: any model with a ``fence``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from django.db import DatabaseError, IntegrityError, models, transaction

from syncguard_django.fencing.fence_field import carrying
from syncguard_django.fencing.row_claims import claim, is_inherited, key_in_owner, owner_of


def save_row(
    row: models.Model, fence: str, using: str, update_fields: Iterable[str] | None
) -> None:
    """Update the row, or insert it if there is none. A row with a higher fence is StaleFence."""
    if update_fields is not None:
        update_fields = {*update_fields, "fence"}
    with _carrying(row, fence), transaction.atomic(using=using):
        if not claim_row(row, fence, using):
            if update_fields is not None:
                raise getattr(row, "NotUpdated", DatabaseError)(
                    "save_fenced() with update_fields did not affect any rows."
                )
            if _insert(row, fence, using):
                return
        _save_claimed(row, using, update_fields)


def create_row(row: models.Model, fence: str, using: str) -> None:
    """Insert the row, for ``fenced(...).create()``. A row with this key is IntegrityError."""
    with _carrying(row, fence), transaction.atomic(using=using):
        if is_inherited(type(row)) and claim_row(row, fence, using):
            # The parent exists, and gets a child: it is updated, the child is inserted.
            row._state.adding = False
            row.save(using=using, force_insert=True)
        else:
            _save_new(row, using)


def claim_row(row: models.Model, fence: str, using: str) -> bool:
    """Stamp the row, which locks it. False: there is no row yet."""
    key = key_in_owner(row)
    return key is not None and claim(owner_of(type(row)), [key], fence, using) == 1


def _insert(row: models.Model, fence: str, using: str) -> bool:
    """Save as a new row. False: somebody else was quicker, and their row is claimed."""
    try:
        with transaction.atomic(using=using):
            _save_new(row, using)
    except IntegrityError:
        if not claim_row(row, fence, using):
            raise
        return False
    return True


def _save_new(row: models.Model, using: str) -> None:
    # The row that has the fence must be inserted, too: by default Django first tries to
    # update the parents, and would update a row that another holder inserted meanwhile.
    owner = owner_of(type(row))
    row.save(using=using, force_insert=(owner,) if is_inherited(type(row)) else True)


def _save_claimed(row: models.Model, using: str, update_fields: Iterable[str] | None) -> None:
    # The row exists, whether this object was read from it or not. A child's own row may not.
    row._state.adding = False
    alone = not is_inherited(type(row))
    row.save(using=using, force_update=alone, update_fields=update_fields)


@contextmanager
def _carrying(row: models.Model, fence: str) -> Iterator[None]:
    """The object carries the fence, and is as it was if the block fails."""
    adding = row._state.adding
    try:
        with carrying([row], fence):
            yield
    except BaseException:
        row._state.adding = adding
        raise
