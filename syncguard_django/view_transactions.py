"""The order for ``locked`` views with ATOMIC_REQUESTS: lock, then transaction, then view.

Django opens the transactions of a request around the view that its resolver found, unless the
view's ``_non_atomic_requests`` contains the database. ``locked`` gives the view a set that contains
every database, and opens the transactions itself, inside the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from asgiref.sync import iscoroutinefunction
from django.db import connections, transaction
from django.http import HttpRequest

from syncguard import Held
from syncguard_django.lock_order_warning import warn_of_view
from syncguard_django.open_transactions import is_open

_ATTRIBUTE: Final = "_non_atomic_requests"
_OPENED_ATTRIBUTE: Final = "_syncguard_opened_transactions"


class OpenedInsideTheLock(set[str]):
    """Contains every database for Django. Its elements are the ones that the user opted out."""

    def __contains__(self, _alias: object) -> bool:
        return True


def open_inside_the_lock(locked_view: Callable[..., Any], view: Callable[..., Any]) -> None:
    """Let ``locked`` open the transactions of a view that is not async. Always a new set: functions
    that wrap each other share Django's set."""
    own = getattr(view, _ATTRIBUTE, ())
    setattr(locked_view, _ATTRIBUTE, OpenedInsideTheLock(own))


def request_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> HttpRequest | None:
    """The request: the first argument, or the one after ``self``. Also inside a request of Django
    REST framework."""
    for value in (*args[:2], kwargs.get("request")):
        for request in (value, getattr(value, "_request", None)):
            if isinstance(request, HttpRequest):
                return request
    return None


class RequestTransactions:
    """The transactions of one request, as seen by one call of a locked view."""

    def __init__(self, request: HttpRequest | None) -> None:
        self._request = request
        match = getattr(request, "resolver_match", None)
        self._view = getattr(match, "func", None)
        self._opted_out: set[str] = getattr(self._view, _ATTRIBUTE, set())

    def to_open(self) -> list[str]:
        """The databases whose transactions ``locked`` must open: once per request.

        Raises RuntimeError for an async view, as Django does.
        """
        is_ours = isinstance(self._opted_out, OpenedInsideTheLock)
        if not is_ours or hasattr(self._request, _OPENED_ATTRIBUTE):
            return []
        aliases = self._atomic_aliases()
        if aliases and iscoroutinefunction(self._view):
            raise RuntimeError("You cannot use ATOMIC_REQUESTS with async views.")
        return aliases

    def warn_if_open(self, function: Callable[..., Any]) -> bool:
        """Warn if Django has already opened them, outside of the lock."""
        if self._view is None or isinstance(self._opted_out, OpenedInsideTheLock):
            return False
        if not any(is_open(connections[alias]) for alias in self._atomic_aliases()):
            return False
        name = getattr(function, "__qualname__", type(function).__name__)
        warn_of_view(f"{function.__module__}.{name}")
        return True

    @contextmanager
    def opened(self, aliases: list[str], held: Held) -> Iterator[None]:
        """Open the transactions around the view. Rolls back if the lock is known to be lost."""
        setattr(self._request, _OPENED_ATTRIBUTE, True)
        with ExitStack() as stack:
            for alias in reversed(aliases):  # as Django nests them
                stack.enter_context(transaction.atomic(using=alias))
            yield
            held.ensure_held()

    def _atomic_aliases(self) -> list[str]:
        opted_out = list(self._opted_out)  # a list, because ``in`` is always true for our own set
        return [
            alias
            for alias, settings in connections.settings.items()
            if settings["ATOMIC_REQUESTS"] and alias not in opted_out
        ]
