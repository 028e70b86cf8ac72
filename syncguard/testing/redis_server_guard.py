"""No server outlives the process that started it, not even when that process is killed.

A ``Guard`` is a shell of a few kilobytes that waits on a pipe from us. When we die, however we
die, the kernel closes the pipe, and the shell kills the server and removes its folder. Linux's
PR_SET_PDEATHSIG would be simpler, but it fires when the *thread* that started the server ends,
and needs code between fork and exec, which Python warns about once there are threads.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import weakref
from pathlib import Path

# The first line is the pid to watch. A second line means that all is well; the end of the pipe
# without it means that we are gone.
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
                # Ctrl-C goes to the whole process group, and must not take the guard first.
                start_new_session=True,
            )
        except BaseException:
            self.forget()
            raise
        finally:
            os.close(reader)
        _guards.add(self)

    def watch(self, pid: int) -> None:
        """Name the process to kill. Until then the guard kills nothing."""
        self._tell(f"{pid}\n")
        self._watching = True

    def dismiss(self) -> None:
        """End the guard without any killing, once the watched process is reaped. Repeatable."""
        if self._watching and self._pipe >= 0:
            self._tell("\n")
        self.forget()
        self._shell.wait()

    def forget(self) -> None:
        """Let go of the pipe; in a forked child, where the parent still holds the other copy."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    def _tell(self, line: str) -> None:
        # A guard that somebody killed is no reason for a test to fail.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, line.encode())


def _forget_all() -> None:
    # A child that kept the pipe open would keep the guard from seeing that the parent died.
    for guard in list(_guards):
        guard.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
