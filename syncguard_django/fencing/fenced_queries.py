"""``FencedQuerySet``: after ``fenced()``, every write is fenced or refused.

``update()`` of one table has the condition in its own statement. A write that needs more than one
statement reads the keys, claims them (``row_claims``), and then writes only the rows with those
keys. Without ``fenced()`` a query set writes like any other, and no write lowers a fence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from typing import Any, Final, TypeVar

from asgiref.sync import sync_to_async
from django.db import models, transaction
from django.db.models import sql
from django.db.models.utils import resolve_callables

from syncguard import LockError
from syncguard_django.fencing.fence_field import Exactly, assigned_fence, attribute_of
from syncguard_django.fencing.fence_values import NO_FENCE, checked_fence
from syncguard_django.fencing.fenced_save import create_row
from syncguard_django.fencing.row_claims import (
    batches,
    claim,
    is_inherited,
    owner_of,
    refuse_if_higher,
)

M = TypeVar("M", bound=models.Model)


class FencedQuerySet(models.QuerySet[M]):
    """A query set that can be bound to a fence."""

    _fence: str | None = None

    def fenced(self, fence: str) -> FencedQuerySet[M]:
        """Bind to a fence: writes then raise StaleFence, and change nothing, when one of the rows
        carries a higher one. Methods that cannot be fenced raise LockError."""
        return self._bound(checked_fence(fence))

    def forget_fences(self) -> int:
        """Let these rows accept any fence again. Returns how many there are.

        Use it after the lock server has lost its fence counters. A database with
        ``FenceNeverDecreases`` refuses it.
        """
        self._refuse_if_fenced("forget_fences")
        return super().update(fence=Exactly(NO_FENCE))

    forget_fences.alters_data = True  # type: ignore[attr-defined]

    async def aforget_fences(self) -> int:
        """``forget_fences()`` for asyncio."""
        return await sync_to_async(self.forget_fences)()

    aforget_fences.alters_data = True  # type: ignore[attr-defined]

    def update(self, **values: Any) -> int:
        if self._fence is None:
            return super().update(**values)
        _refuse_another_fence(values, self._fence)
        self._for_write = True
        with transaction.atomic(using=self.db):
            if self._is_one_statement(values):
                changed = self._update_in_one_statement(values, self._fence)
            else:
                rows = (self._only(batch) for batch in batches(self._claim_keys(self._fence)))
                changed = sum(super(FencedQuerySet, each).update(**values) for each in rows)
        self._result_cache = None
        return changed

    def delete(self) -> tuple[int, dict[str, int]]:
        if self._fence is None:
            return super().delete()
        self._for_write = True
        counts: Counter[str] = Counter()
        with transaction.atomic(using=self.db):
            for batch in batches(self._claim_keys(self._fence)):
                counts.update(super(FencedQuerySet, self._only(batch)).delete()[1])
        self._result_cache = None
        return sum(counts.values()), dict(counts)

    delete.queryset_only = True  # type: ignore[attr-defined]

    def create(self, **values: Any) -> M:
        if self._fence is None:
            return super().create(**values)
        _refuse_another_fence(values, self._fence)
        self._for_write = True
        row: M = self.model(**values)
        create_row(row, self._fence, self.db)
        return row

    def update_or_create(
        self,
        defaults: Mapping[str, Any] | None = None,
        create_defaults: Mapping[str, Any] | None = None,
        **lookup: Any,
    ) -> tuple[M, bool]:
        if self._fence is None:
            return super().update_or_create(defaults, create_defaults, **lookup)
        for given in (defaults, create_defaults, lookup):
            _refuse_another_fence(given or {}, self._fence)
        self._for_write = True
        with transaction.atomic(using=self.db):
            found = self.select_for_update()
            new = defaults if create_defaults is None else create_defaults
            row, created = found.get_or_create(new, **lookup)
            if not created:
                for name, value in resolve_callables(defaults or {}):
                    setattr(row, name, value)
                row.save_fenced(self._fence, using=self.db)
        return row, created

    def bulk_create(
        self,
        objs: Iterable[M],
        batch_size: int | None = None,
        ignore_conflicts: bool = False,
        update_conflicts: bool = False,
        update_fields: Collection[str] | None = None,
        unique_fields: Collection[str] | None = None,
    ) -> list[M]:
        if update_conflicts and update_fields:
            update_fields = _without_the_fence(update_fields)
        options = (ignore_conflicts, update_conflicts, update_fields, unique_fields)
        if self._fence is None:
            return super().bulk_create(objs, batch_size, *options)
        if update_conflicts:
            raise LockError(
                "InvalidArgument",
                "bulk_create(update_conflicts=True) cannot be fenced: use update_or_create(), or"
                " bulk_create(ignore_conflicts=True) and then bulk_update()",
            )
        rows = list(objs)
        with assigned_fence(rows, self._fence):
            return super(FencedQuerySet, self._bound(None)).bulk_create(rows, batch_size, *options)

    def bulk_update(
        self, objs: Iterable[M], fields: Iterable[str], batch_size: int | None = None
    ) -> int:
        if self._fence is None:
            return super().bulk_update(objs, fields, batch_size)
        rows, fields = list(objs), list(fields)
        if "fence" in fields:
            raise LockError("InvalidArgument", "fenced() sets the fence: leave it out of fields")
        self._for_write = True
        with transaction.atomic(using=self.db):
            changed = super().bulk_update(rows, fields, batch_size)  # calls our update()
        attribute = attribute_of(self.model)
        for row in rows:
            attribute.mark_outdated(row)
        return changed

    def __and__(self, other: models.QuerySet[M]) -> FencedQuerySet[M]:
        return self._combined(other, super().__and__(other))

    def __or__(self, other: models.QuerySet[M]) -> FencedQuerySet[M]:
        return self._combined(other, super().__or__(other))

    def __xor__(self, other: models.QuerySet[M]) -> FencedQuerySet[M]:
        return self._combined(other, super().__xor__(other))

    def _combined(
        self, other: models.QuerySet[M], combined: models.QuerySet[M]
    ) -> FencedQuerySet[M]:
        """Bound to the fence of either side: Django keeps the attributes of only one side."""
        fences = {self._fence, getattr(other, "_fence", None)} - {None}
        if len(fences) > 1:
            raise LockError("InvalidArgument", "the query sets are bound to two different fences")
        fence = next(iter(fences), None)
        if isinstance(combined, FencedQuerySet):
            return combined._bound(fence)
        bound = self._bound(fence)  # for a slice, Django returns a query set of the base manager
        bound.query = combined.query
        return bound

    def _is_one_statement(self, values: Mapping[str, Any]) -> bool:
        """Whether Django will run one UPDATE with the conditions in its WHERE."""
        query: Any = self.query.chain(sql.UpdateQuery)
        query.add_update_values({**values, "fence": self._fence})
        query.get_initial_alias()
        alone = not query.related_updates and query.count_active_tables() == 1
        return alone and not query.annotations and not query.distinct

    def _update_in_one_statement(self, values: Mapping[str, Any], fence: str) -> int:
        rows = self._bound(None).using(self.db)
        lower = rows.filter(fence__lte=fence)
        changed = super(FencedQuerySet, lower).update(**{**values, "fence": fence})
        refuse_if_higher(rows, fence, self.db)
        return changed

    def _claim_keys(self, fence: str) -> list[Any]:
        """Claim the rows that match, and return their keys."""
        keys = self._keys()
        claim(owner_of(self.model), keys.values(), fence, self.db)
        # Now they are locked. Leave out rows that stopped matching before they were claimed.
        still = self._keys()
        return [key for key in keys if key in still]

    def _keys(self) -> dict[Any, Any]:
        """The keys of the rows that match, with their keys in the table that has the fence."""
        rows = self._bound(None).using(self.db).order_by()
        if not is_inherited(self.model):
            return {key: key for key in rows.values_list("pk", flat=True)}
        pk_of_owner = owner_of(self.model)._meta.pk
        assert pk_of_owner is not None
        return dict(rows.values_list("pk", pk_of_owner.name))

    def _only(self, keys: list[Any]) -> FencedQuerySet[M]:
        """The rows with these keys, and no other condition; bound to no fence."""
        rows = self._bound(None).using(self.db)
        if rows.query.annotations:
            rows.query.clear_where()  # update() may use the annotations in its values
        else:
            rows.query = sql.Query(self.model)
        chosen: FencedQuerySet[M] = rows.filter(pk__in=keys)
        return chosen

    def _bound(self, fence: str | None) -> FencedQuerySet[M]:
        bound: FencedQuerySet[M] = self._chain()  # type: ignore[attr-defined]
        bound._fence = fence
        return bound

    def _refuse_if_fenced(self, method: str) -> None:
        if self._fence is not None:
            raise LockError("InvalidArgument", f"{method}() cannot be fenced")

    def _clone(self) -> FencedQuerySet[M]:
        clone: FencedQuerySet[M] = super()._clone()  # type: ignore[misc]
        clone._fence = self._fence
        return clone


def _refuse_another_fence(values: Mapping[str, Any], fence: str) -> None:
    if values.get("fence", fence) != fence:
        raise LockError("InvalidArgument", "fenced() sets the fence: do not pass another one")


def _without_the_fence(update_fields: Collection[str]) -> list[str]:
    kept = [name for name in update_fields if name != "fence"]
    if not kept:
        raise LockError("InvalidArgument", "an upsert never changes a fence: update other fields")
    return kept


_FENCED_BY_OUR_METHODS: Final = frozenset(
    {"get_or_create", "aget_or_create", "acreate", "abulk_create", "abulk_update"}
    | {"adelete", "aupdate", "aupdate_or_create"}
)
"""Methods of Django that write only through the fenced methods above."""


def _refused_if_fenced(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def refuse_or_call(self: FencedQuerySet[Any], *args: Any, **options: Any) -> Any:
        self._refuse_if_fenced(name)
        return method(self, *args, **options)

    return refuse_or_call


def _refuse_other_writes() -> None:
    """Make every other method that writes, in any version of Django, refuse a fenced query set."""
    known = _FENCED_BY_OUR_METHODS | set(vars(FencedQuerySet))
    for name in set(dir(models.QuerySet)) - known:
        method = getattr(models.QuerySet, name)
        if getattr(method, "alters_data", False):
            setattr(FencedQuerySet, name, _refused_if_fenced(name, method))


_refuse_other_writes()
