"""Kills a server when the process that started it ends, also when that process is killed.

A ``Guard`` is a small shell process that reads from a pipe of this process. When this process ends
in any way, the kernel closes the pipe, and the shell kills the server and removes its folder.
Linux's PR_SET_PDEATHSIG would be simpler. But it sends its signal when the *thread* that started
the server ends, and it needs code between fork and exec, which is not safe with threads.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import weakref
from pathlib import Path

# The first line is the pid to kill. A second line means: end without killing. If the pipe is closed
# before the second line, the process that started the server has ended.
_WATCH = 'read -r pid && { read -r _ || { kill -KILL "$pid"; rm -rf -- "$1"; }; }'

_guards: weakref.WeakSet[Guard] = weakref.WeakSet()


class Guard:
    """Kills one process, and removes its folder, when the current process dies."""

    def __init__(self, folder: Path) -> None:
        self._watching = False
        reader, self._pipe = os.pipe()
        try:
            self._shell = subprocess.Popen(  # noqa: S603 - a constant script, no user input in it
                ["/bin/sh", "-c", _WATCH, "syncguard-guard", str(folder)],
                stdin=reader,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # Ctrl-C goes to the whole process group, and must not kill the guard.
                start_new_session=True,
            )
        except BaseException:
            self.close_pipe()
            raise
        finally:
            os.close(reader)
        _guards.add(self)

    def watch(self, pid: int) -> None:
        """Set the process to kill. Until then the guard kills nothing."""
        self._write(f"{pid}\n")
        self._watching = True

    def dismiss(self) -> None:
        """End the guard without killing, after the watched process ended. Can be called again."""
        if self._watching and self._pipe >= 0:
            self._write("\n")
        self.close_pipe()
        self._shell.wait()

    def close_pipe(self) -> None:
        """Close the pipe. In a forked child this closes only the child's copy."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    def _write(self, line: str) -> None:
        # A test must not fail because its guard was killed.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, line.encode())


def _close_all_pipes() -> None:
    # If a child kept the pipe open, the guard would not detect that the parent ended.
    for guard in list(_guards):
        guard.close_pipe()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_all_pipes)
