"""``FencedModel``: rows that remember the fence of the holder that wrote them last.

Every fenced write is one transaction: claim the row (``row_claims``), then write it. What
``save_fenced`` and ``delete_fenced`` write is written by Django's own ``save()`` and ``delete()``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from asgiref.sync import sync_to_async
from django.db import DatabaseError, IntegrityError, models, router, transaction

from syncguard_django.fencing.fence_field import FenceField, carrying
from syncguard_django.fencing.fence_values import checked_fence
from syncguard_django.fencing.fenced_queries import FencedQuerySet
from syncguard_django.fencing.row_claims import claim, is_inherited, key_in_owner, owner_of


class FencedModel(models.Model):
    """A model whose rows remember the fence of the holder that wrote them last."""

    fence = FenceField()

    objects = FencedQuerySet.as_manager()

    class Meta:
        abstract = True

    def save_fenced(
        self, fence: str, *, using: str | None = None, update_fields: Iterable[str] | None = None
    ) -> None:
        """``save()``, unless the row carries a higher fence: then StaleFence, and no change."""
        fence = checked_fence(fence)
        using = using or router.db_for_write(type(self), instance=self)
        if update_fields is not None:
            update_fields = {*update_fields, "fence"}
        with self._carrying(fence), transaction.atomic(using=using):
            if not self._claim(fence, using):
                if update_fields is not None:
                    raise getattr(self, "NotUpdated", DatabaseError)(
                        "save_fenced() with update_fields did not affect any rows."
                    )
                if self._insert(fence, using):
                    return
            self._save_claimed(using, update_fields)

    save_fenced.alters_data = True  # type: ignore[attr-defined]

    async def asave_fenced(
        self, fence: str, *, using: str | None = None, update_fields: Iterable[str] | None = None
    ) -> None:
        """``save_fenced()`` for asyncio."""
        await sync_to_async(self.save_fenced)(fence, using=using, update_fields=update_fields)

    asave_fenced.alters_data = True  # type: ignore[attr-defined]

    def delete_fenced(
        self, fence: str, *, using: str | None = None, keep_parents: bool = False
    ) -> tuple[int, dict[str, int]]:
        """``delete()``, unless the row carries a higher fence: then StaleFence, and no change."""
        fence = checked_fence(fence)
        using = using or router.db_for_write(type(self), instance=self)
        with transaction.atomic(using=using):
            if key_in_owner(self) is not None and not self._claim(fence, using):
                # No row. One that another holder inserts from now on is not ours to delete.
                return 0, {}
            return self.delete(using=using, keep_parents=keep_parents)

    delete_fenced.alters_data = True  # type: ignore[attr-defined]

    async def adelete_fenced(
        self, fence: str, *, using: str | None = None, keep_parents: bool = False
    ) -> tuple[int, dict[str, int]]:
        """``delete_fenced()`` for asyncio."""
        return await sync_to_async(self.delete_fenced)(
            fence, using=using, keep_parents=keep_parents
        )

    adelete_fenced.alters_data = True  # type: ignore[attr-defined]

    def _create_fenced(self, fence: str, using: str) -> None:
        """Insert the row, for ``fenced(...).create()``. A row with this key is IntegrityError."""
        with self._carrying(fence), transaction.atomic(using=using):
            if is_inherited(type(self)) and self._claim(fence, using):
                # The parent exists, and gets a child: it is updated, the child is inserted.
                self._state.adding = False
                self.save(using=using, force_insert=True)
            else:
                self._save_new(using)

    def _insert(self, fence: str, using: str) -> bool:
        """Save as a new row. False: somebody else was quicker, and their row is claimed."""
        try:
            with transaction.atomic(using=using):
                self._save_new(using)
        except IntegrityError:
            if not self._claim(fence, using):
                raise
            return False
        return True

    def _save_new(self, using: str) -> None:
        # The row that has the fence must be inserted, too: by default Django first tries to
        # update the parents, and would update a row that another holder inserted meanwhile.
        owner = owner_of(type(self))
        self.save(using=using, force_insert=(owner,) if is_inherited(type(self)) else True)

    def _save_claimed(self, using: str, update_fields: Iterable[str] | None) -> None:
        # The row exists, whether this object was read from it or not. A child's own row may not.
        self._state.adding = False
        alone = not is_inherited(type(self))
        self.save(using=using, force_update=alone, update_fields=update_fields)

    def _claim(self, fence: str, using: str) -> bool:
        """Stamp the row, which locks it. False: there is no row yet."""
        key = key_in_owner(self)
        return key is not None and claim(owner_of(type(self)), [key], fence, using) == 1

    @contextmanager
    def _carrying(self, fence: str) -> Iterator[None]:
        """The object carries the fence, and is as it was if the block fails."""
        adding = self._state.adding
        try:
            with carrying([self], fence):
                yield
        except BaseException:
            self._state.adding = adding
            raise
