"""The holder's label, ``task-name[task-id]@host``. Only this module writes and reads it.

If the task's message was delivered again, the label ends with " (delivered again)".
"""

from __future__ import annotations

import functools
import re
from typing import Final

from celery.utils.nodenames import gethostname

MAX_BYTES: Final = 256
"""The core's limit. A long name or host is cut, so that the task id fits."""

_LABEL: Final = re.compile(r"(?P<name>[^\[\]]*)\[(?P<id>[^\[\]]+)\]@[^\[\]]*")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.:-]+")
_NAME_BYTES: Final = 120
_HOST_BYTES: Final = 60
_REDELIVERED: Final = " (delivered again)"


def holder_label(name: str, task_id: str | None, *, redelivered: bool = False) -> str:
    """The label of a task with an id, or of a direct call, which has no id."""
    short, host = _name_and_host(name)
    # Leave out an id that cannot be read back from the label unchanged: a duplicate would get the
    # result of a task that does not exist.
    if task_id is not None and task_id == _clean(task_id):
        label = f"{short}[{task_id}]@{host}"
        if redelivered and len(label.encode()) + len(_REDELIVERED) <= MAX_BYTES:
            return label + _REDELIVERED
        if len(label.encode()) <= MAX_BYTES:
            return label
    return f"{short}@{host}"


def task_id_in(label: str | None, name: str) -> str | None:
    """The id of the task of this name that holds the lock; else None."""
    match = _LABEL.fullmatch(label or "")
    if match is None or match["name"] != _name_and_host(name)[0]:
        return None
    return match["id"]


def is_redelivered(label: str | None) -> bool:
    """Whether the holder is a task whose message was delivered before."""
    return label is not None and label.endswith(_REDELIVERED)


@functools.lru_cache(maxsize=1024)
def _name_and_host(name: str) -> tuple[str, str]:
    return _cut(name, _NAME_BYTES), _cut(gethostname(), _HOST_BYTES)


def _cut(text: str, limit: int) -> str:
    return _clean(text).encode()[-limit:].decode(errors="ignore")


def _clean(text: str) -> str:
    if _PLAIN.fullmatch(text):
        return text
    return "".join(c if c.isprintable() and c not in "[]" else "?" for c in text)
