"""The change list of the admin page: Django's own, filled from backends instead of a database.

Backends list the locks that expire soonest first: in this order only one page is read. Any other
order, and a search, reads up to ``LISTED_AT_MOST`` locks of each alias.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.http import HttpRequest

from syncguard_django import live_locks
from syncguard_django.configured_backends import locks
from syncguard_django.live_locks import Listing, LiveLock
from syncguard_django.models import Lock

ALIAS_PARAMETER: Final = "using"
NATIVE_ORDER: Final = "expires_at_ms"
SORT_KEYS: Final[dict[str, Callable[[LiveLock], str | int]]] = {
    "key_hash": lambda lock: lock.info.key_hash,
    "using": lambda lock: lock.using,
    "holder": lambda lock: lock.info.holder or "",
    "fence": lambda lock: lock.info.fence,
    "acquired_at_ms": lambda lock: lock.info.acquired_at_ms,
    "expires_at_ms": lambda lock: lock.info.expires_at_ms,
    "lock_id_hash": lambda lock: lock.info.lock_id_hash,
}


class LockChangeList(ChangeList):
    """Provides what Django's templates need of a change list, without any SQL."""

    listing: Listing
    searched_at_most: int | None
    """Set when there were more locks than were read."""

    def get_results(self, request: HttpRequest) -> None:
        order = self._order(request)
        if self.query or order != [NATIVE_ORDER]:
            found = self._sorted_matches(order)
            start = self._turn_to_page(len(found))
            self.result_list = list(map(row_of, found[start : start + self.list_per_page]))
        else:
            self._read_one_page()
        for row in self.result_list:
            row.preserved_filters = self.preserved_filters
        self.full_result_count = self.listing.total
        self.show_full_result_count = True
        self.show_admin_actions = False
        self.can_show_all = False

    @property
    def count_is_unknown(self) -> bool:
        """No alias answered, so the page must not show zero."""
        return len(self.listing.failures) == len(self._aliases())

    def _read_one_page(self) -> None:
        self.searched_at_most = None
        requested = max(1, self.page_num) - 1
        self.listing = live_locks.page(
            self._aliases(), self.list_per_page, requested * self.list_per_page
        )
        start = self._turn_to_page(self.listing.total)
        if start != requested * self.list_per_page:
            self.listing = live_locks.page(self._aliases(), self.list_per_page, start)
        self.result_list = list(map(row_of, self.listing.locks))

    def _turn_to_page(self, count: int) -> int:
        """Select the requested page. Returns how many locks are on the pages before it."""
        self.paginator = Paginator(range(count), self.list_per_page)
        # A page that no longer exists is no error: the number of locks changes all the time.
        self.page_num = min(max(1, self.page_num), self.paginator.num_pages)
        self.result_count = count
        self.multi_page = count > self.list_per_page
        return (self.page_num - 1) * self.list_per_page

    def _sorted_matches(self, order: list[str]) -> list[LiveLock]:
        self.listing = live_locks.everything(self._aliases())
        self.searched_at_most = None if self.listing.is_complete else len(self.listing.locks)
        found = [lock for lock in self.listing.locks if matches(lock, self.query)]
        for field in reversed(order):
            found.sort(key=SORT_KEYS[field.lstrip("-")], reverse=field.startswith("-"))
        return found

    def _order(self, request: HttpRequest) -> list[str]:
        requested: Iterable[Any] = self.get_ordering(request, self.root_queryset)
        known = (
            field
            for field in requested
            if isinstance(field, str) and field.lstrip("-") in SORT_KEYS
        )
        return list(dict.fromkeys(known)) or [NATIVE_ORDER]

    def _aliases(self) -> tuple[str, ...]:
        known = tuple(locks)
        chosen = self.params.get(ALIAS_PARAMETER)
        return (chosen,) if chosen in known else known


def matches(lock: LiveLock, query: str) -> bool:
    """Whether a lock matches a search: by the beginning of a hash, or by its holder."""
    wanted = query.strip().lower()
    info = lock.info
    return (
        lock.has_hash(wanted)
        or info.lock_id_hash.startswith(wanted)
        or wanted in (info.holder or "").lower()
    )


def row_of(lock: LiveLock) -> Lock:
    """A lock as the model that the admin shows."""
    info = lock.info
    row = Lock(
        id=f"{lock.using}:{info.lock_id_hash}",
        using=lock.using,
        key_hash=info.key_hash,
        lock_id_hash=info.lock_id_hash,
        holder=info.holder or "",
        fence=info.fence,
        acquired_at_ms=info.acquired_at_ms,
        expires_at_ms=info.expires_at_ms,
    )
    row.held_ms, row.remaining_ms, row.raw_key = lock.held_ms, lock.remaining_ms, lock.key
    return row
