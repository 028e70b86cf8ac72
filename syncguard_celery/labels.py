"""The holder's label, ``task-name[task-id]@host``: written here, and read here, nowhere else."""

from __future__ import annotations

import re
from typing import Final

from celery.utils.nodenames import gethostname

MAX_BYTES: Final = 256
"""What the core accepts. The task id always fits; a name or a host that does not is cut."""

_LABEL: Final = re.compile(r"(?P<name>[^\[\]]*)\[(?P<id>[^\[\]]+)\]@[^\[\]]*")
_NAME_BYTES: Final = 120
_HOST_BYTES: Final = 60


def holder_label(name: str, task_id: str | None) -> str:
    """Who holds the lock: a task with an id, or a direct call, which has none."""
    host = _cut(gethostname(), _HOST_BYTES)
    short = _cut(name, _NAME_BYTES)
    label = f"{short}@{host}" if task_id is None else f"{short}[{_clean(task_id)}]@{host}"
    return label if len(label.encode()) <= MAX_BYTES else f"{short}@{host}"


def task_id_in(label: str | None, name: str) -> str | None:
    """The id of the task of this name that holds the lock; None if the holder is no such task."""
    match = _LABEL.fullmatch(label or "")
    if match is None or match["name"] != _cut(name, _NAME_BYTES):
        return None
    return match["id"]


def _cut(text: str, limit: int) -> str:
    return _clean(text).encode()[-limit:].decode(errors="ignore")


def _clean(text: str) -> str:
    return "".join(c if c.isprintable() and c not in "[]" else "?" for c in text)
