"""The models: ``Lock``, which has no table, and ``FenceMark``, which has one.

``Lock`` lets the admin show the live locks as a normal change list. Its manager never queries a
database: ``dumpdata``, and any other code that reads all models, finds it empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import models
from django.utils.translation import gettext_lazy

from syncguard import FENCE_MAX

FENCE_DIGITS = len(FENCE_MAX)


class _NoRows(models.Manager["Lock"]):
    def get_queryset(self) -> models.QuerySet[Lock]:
        nothing: models.QuerySet[Lock] = super().get_queryset().none()
        return nothing


class Lock(models.Model):
    """A live lock, sanitized. Stored in its backend, never in the database."""

    id = models.CharField(primary_key=True, max_length=255)
    using = models.CharField("alias", max_length=255)
    key_hash = models.CharField(max_length=24)
    lock_id_hash = models.CharField("lock-id hash", max_length=24)
    holder = models.CharField(max_length=256, blank=True)
    fence = models.CharField(max_length=FENCE_DIGITS)
    acquired_at_ms = models.BigIntegerField()
    expires_at_ms = models.BigIntegerField()

    objects = _NoRows()

    if TYPE_CHECKING:
        held_ms: int
        remaining_ms: int
        raw_key: str | None
        preserved_filters: str

    class Meta:
        managed = False
        base_manager_name = "objects"
        verbose_name = gettext_lazy("lock")
        verbose_name_plural = gettext_lazy("locks")
        default_permissions = ("view",)
        permissions = (
            ("release_lock", "Can force-release lock"),
            ("view_lock_key", "Can view the raw keys of locks"),
        )

    def __str__(self) -> str:
        return f"{self.key_hash} (fence {self.fence})"


class FenceMark(models.Model):
    """The highest fence that ``fencing.guard`` has seen for one key."""

    key_digest = models.CharField(primary_key=True, max_length=64)
    fence = models.CharField(max_length=FENCE_DIGITS)
    seen_at = models.DateTimeField()

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.key_digest[:12]} (fence {self.fence})"
