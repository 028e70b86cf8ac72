"""Fences travel: from the task that holds a lock to everything that is published under it.

A receiver of ``before_task_publish`` writes our header into each message, whoever publishes it:
children, chain steps, chord bodies, links, replacements, retries. It always writes it anew, so
that a header somebody copied from the parent's request carries nothing on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from celery.signals import before_task_publish

from syncguard.current import held_locks
from syncguard_celery.message_header import (
    HEADER,
    MAX_FENCES,
    Fences,
    fences_in,
    header_of,
    key_digest,
    merged,
)
from syncguard_celery.task_call import running_requests

if TYPE_CHECKING:
    from celery.app.task import Context

_OWN: Final = "_syncguard_fences"


class Attachment:
    """What goes into the message of one task besides the fences."""

    def __init__(self, task_id: str, header: dict[str, Any]) -> None:
        self.task_id = task_id
        self.header = header
        self.is_used = False
        """Whether a message was made with it. A base class may publish later, or not at all, and
        the old message protocol has no headers."""


_attached: ContextVar[Attachment | None] = ContextVar("attached", default=None)


class _Own:
    """The locks a request has held. Shows no key to those who print requests; hashes them late,
    because most tasks publish nothing."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held: list[tuple[str, str]] = []

    def fences(self) -> Fences:
        return merged(*({key_digest(key): fence} for key, fence in self.held[-MAX_FENCES:]))


def inherited_fence(key: str) -> str | None:
    """The fence under which the running task was published, if that lock was held then.

    Hand it to whatever the lock protects: a later holder's fence is the larger string.
    """
    requests = running_requests()
    if not requests:
        return None
    fences = merged(_fences(requests[1:]), fences_in(header_of(requests[0]), "fences"))
    return fences.get(key_digest(key))


def remember(request: Context | None, key: str, fence: str) -> None:
    """The task of this request holds or held this lock; what it publishes shall say so."""
    if request is None:
        return
    own = request.__dict__.setdefault(_OWN, _Own())
    own.held.append((key, fence))
    if request.is_eager:
        # An eager retry is not published: it gets the headers of the request before it. What
        # this one came with stays where luggage_of() looks first.
        came_with = request.__dict__.setdefault(HEADER, header_of(request))
        fences = merged(fences_in(came_with, "fences"), own.fences())
        request.headers = {**(request.headers or {}), HEADER: {"fences": fences}}


@contextlib.contextmanager
def attaching(task_id: str, **header: object) -> Iterator[Attachment]:
    """Put this, too, into the message of this one task, if it is published in the block."""
    attachment = Attachment(task_id, header)
    token = _attached.set(attachment)
    try:
        yield attachment
    finally:
        _attached.reset(token)


@before_task_publish.connect(weak=False, dispatch_uid="syncguard_celery.propagation")
def _carry(headers: dict[str, Any] | None = None, **_: object) -> None:
    if not headers or "id" not in headers:
        return  # the old message protocol has no headers to carry anything
    header: dict[str, Any] = {}
    requests = running_requests()
    if fences := merged(_fences(requests), _fences_held_here()):
        header["fences"] = fences
    for request in requests:
        if request.id == headers["id"]:
            after = merged(fences_in(header_of(request), "after"), _own(request))
            if after:
                header["after"] = after
    attached = _attached.get()
    if attached is not None and attached.task_id == headers["id"]:
        header.update(attached.header)
        attached.is_used = True
    headers.pop(HEADER, None)
    if header:
        headers[HEADER] = header


def _own(request: Context) -> Fences:
    own: _Own | None = request.__dict__.get(_OWN)
    return {} if own is None else own.fences()


def _fences_held_here() -> Fences:
    """Of the locks held here and now, whoever took them: a task, a view, or ``lock()``."""
    held = reversed(list(held_locks()))
    return merged(*({key_digest(key): lock.fence} for key, lock in held))


def _fences(requests: list[Context]) -> Fences:
    """All that these requests inherited and acquired; the innermost, which is first, wins."""
    layers: list[Fences] = []
    for request in reversed(requests):
        layers += [fences_in(header_of(request), "fences"), _own(request)]
    return merged(*layers)
