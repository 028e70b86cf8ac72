"""The holder's label, ``task-name[task-id]@host``: written here, and read here, nowhere else.

A task whose message was delivered again says so at the end.
"""

from __future__ import annotations

import functools
import re
from typing import Final

from celery.utils.nodenames import gethostname

MAX_BYTES: Final = 256
"""What the core accepts. The task id always fits; a name or a host that does not is cut."""

_LABEL: Final = re.compile(r"(?P<name>[^\[\]]*)\[(?P<id>[^\[\]]+)\]@[^\[\]]*")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.:-]+")
_NAME_BYTES: Final = 120
_HOST_BYTES: Final = 60
_AGAIN: Final = " (delivered again)"


def holder_label(name: str, task_id: str | None, *, again: bool = False) -> str:
    """Who holds the lock: a task with an id, or a direct call, which has none."""
    short, host = _name_and_host(name)
    # An id that would not come back from the label is better left out: a duplicate would be
    # answered with the result of a task that does not exist.
    if task_id is not None and task_id == _clean(task_id):
        label = f"{short}[{task_id}]@{host}"
        if again and len(label.encode()) + len(_AGAIN) <= MAX_BYTES:
            return label + _AGAIN
        if len(label.encode()) <= MAX_BYTES:
            return label
    return f"{short}@{host}"


def task_id_in(label: str | None, name: str) -> str | None:
    """The id of the task of this name that holds the lock; None if the holder is no such task."""
    match = _LABEL.fullmatch(label or "")
    if match is None or match["name"] != _name_and_host(name)[0]:
        return None
    return match["id"]


def is_delivered_again(label: str | None) -> bool:
    """Whether the holder is a task whose message was delivered before."""
    return label is not None and label.endswith(_AGAIN)


@functools.lru_cache(maxsize=1024)
def _name_and_host(name: str) -> tuple[str, str]:
    return _cut(name, _NAME_BYTES), _cut(gethostname(), _HOST_BYTES)


def _cut(text: str, limit: int) -> str:
    return _clean(text).encode()[-limit:].decode(errors="ignore")


def _clean(text: str) -> str:
    if _PLAIN.fullmatch(text):
        return text
    return "".join(c if c.isprintable() and c not in "[]" else "?" for c in text)
