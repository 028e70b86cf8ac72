"""Is a path on a network file system? SQLite's locks and shared memory do not work there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

MOUNTS: Final = Path("/proc/self/mounts")

_NETWORK: Final = frozenset(
    {
        *("9p", "acfs", "afs", "beegfs", "ceph", "cifs", "davfs", "gfs2", "glusterfs", "gpfs"),
        *("lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "smb3", "smbfs", "vboxsf"),
        *("fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs"),
    }
)
_OCTAL: Final = re.compile(r"\\([0-7]{3})")


def file_system_of(path: str, mounts: Iterable[str] | None = None) -> str:
    """The type of the file system under a path, such as ``ext4``. Empty if it is not known."""
    if mounts is None:
        try:
            mounts = MOUNTS.read_text("utf-8", "surrogateescape").splitlines()
        except OSError:  # not Linux
            return ""
    real = os.path.join(os.path.realpath(path), "")
    found, kind = "", ""
    for line in mounts:
        _, point, each_kind, *_ = line.split(" ")
        point = os.path.join(_OCTAL.sub(lambda code: chr(int(code[1], 8)), point), "")
        # A later mount at the same point hides the earlier one.
        if real.startswith(point) and len(point) >= len(found):
            found, kind = point, each_kind
    return kind


def is_network(file_system: str) -> bool:
    """Whether a type of file system is reached over a network."""
    return file_system in _NETWORK
