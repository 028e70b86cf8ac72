"""Fences are sent from the task that holds a lock to every message published under it.

A receiver of ``before_task_publish`` writes our header into each message: children, chain steps,
chord bodies, links, replacements, retries. It always writes a new header, so that a header copied
from the parent's request has no effect.
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

_HELD_BY_REQUEST: Final = "_syncguard_fences"


class Attachment:
    """Header fields for the message of one task, in addition to the fences."""

    def __init__(self, task_id: str, header: dict[str, Any]) -> None:
        self.task_id = task_id
        self.header = header
        self.is_used = False
        """Whether a message was made with it. A base class may publish later or never, and message
        protocol 1 has no headers."""


_attached: ContextVar[Attachment | None] = ContextVar("attached", default=None)


class _HeldByRequest:
    """The locks that a request has held. Its repr shows no key. Keys are hashed only when a message
    is published, because most tasks publish nothing."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held: list[tuple[str, str]] = []

    def fences(self) -> Fences:
        return merged(*({key_digest(key): fence} for key, fence in self.held[-MAX_FENCES:]))


def inherited_fence(key: str) -> str | None:
    """The fence of this key's lock when the running task was published; None if it was not held.

    Pass it to the resource that the lock protects: a later holder's fence is the larger string.
    """
    requests = running_requests()
    if not requests:
        return None
    fences = merged(_fences(requests[1:]), fences_in(header_of(requests[0]), "fences"))
    return fences.get(key_digest(key))


def record_fence(request: Context | None, key: str, fence: str) -> None:
    """Record that this request's task holds this lock, for the messages that it publishes."""
    if request is None:
        return
    own = request.__dict__.setdefault(_HELD_BY_REQUEST, _HeldByRequest())
    own.held.append((key, fence))
    if request.is_eager:
        # An eager retry is not published: it gets the headers of the previous request. The header
        # of this request stays in its __dict__, which header_of() reads first.
        received = request.__dict__.setdefault(HEADER, header_of(request))
        fences = merged(fences_in(received, "fences"), own.fences())
        request.headers = {**(request.headers or {}), HEADER: {"fences": fences}}


@contextlib.contextmanager
def attaching(task_id: str, **header: object) -> Iterator[Attachment]:
    """Add these fields to the message of this task, if it is published in the block."""
    attachment = Attachment(task_id, header)
    token = _attached.set(attachment)
    try:
        yield attachment
    finally:
        _attached.reset(token)


@before_task_publish.connect(weak=False, dispatch_uid="syncguard_celery.fence_propagation")
def _write_header(headers: dict[str, Any] | None = None, **_: object) -> None:
    if not headers or "id" not in headers:
        return  # message protocol 1 has no headers
    header: dict[str, Any] = {}
    requests = running_requests()
    if fences := merged(_fences(requests), _fences_held_here()):
        header["fences"] = fences
    for request in requests:
        if request.id == headers["id"]:
            after = merged(fences_in(header_of(request), "after"), _fences_of(request))
            if after:
                header["after"] = after
    attached = _attached.get()
    if attached is not None and attached.task_id == headers["id"]:
        header.update(attached.header)
        attached.is_used = True
    headers.pop(HEADER, None)
    if header:
        headers[HEADER] = header


def _fences_of(request: Context) -> Fences:
    own: _HeldByRequest | None = request.__dict__.get(_HELD_BY_REQUEST)
    return {} if own is None else own.fences()


def _fences_held_here() -> Fences:
    """Fences of the locks held now by this code: by a task, a view, or ``lock()``."""
    held = reversed(list(held_locks()))
    return merged(*({key_digest(key): lock.fence} for key, lock in held))


def _fences(requests: list[Context]) -> Fences:
    """All fences that these requests inherited or acquired. The innermost request overrides."""
    layers: list[Fences] = []
    for request in reversed(requests):
        layers += [fences_in(header_of(request), "fences"), _fences_of(request)]
    return merged(*layers)
