"""``FencedModel``: rows that store the fence of the holder that wrote them last.

Every fenced write is one transaction: claim the row (``row_claims``), then write it.
``save_fenced`` and ``delete_fenced`` write with Django's own ``save()`` (``fenced_save``) and
``delete()``.
"""

from __future__ import annotations

from collections.abc import Iterable

from asgiref.sync import sync_to_async
from django.db import models, router, transaction

from syncguard_django.fencing.fence_field import FenceField
from syncguard_django.fencing.fence_values import checked_fence
from syncguard_django.fencing.fenced_queries import FencedQuerySet
from syncguard_django.fencing.fenced_save import claim_row, save_row
from syncguard_django.fencing.row_claims import key_in_owner


class FencedModel(models.Model):
    """A model whose rows store the fence of the holder that wrote them last."""

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
        save_row(self, fence, using, update_fields)

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
            if not claim_row(self, fence, using) and key_in_owner(self) is not None:
                # No row. If another holder inserts one from now on, do not delete it.
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
