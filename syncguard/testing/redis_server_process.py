"""One running redis-server process: start it, signal it, wait for its end.

``redis_server`` chooses the port and owns the data folder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Final

from syncguard.testing.redis_server_control import Control, RefusedError
from syncguard.testing.server_orphans import Guard

_START_TIMEOUT_S: Final = 30.0
_STOP_TIMEOUT_S: Final = 10.0
POLL_S: Final = 0.005


class PortTakenError(Exception):
    """Another process bound the port after we chose it and before the server started."""


class ServerProcess:
    """A server process. The constructor starts it; only the process that called it may stop it."""

    def __init__(self, program: Path, settings: Path, control: Control) -> None:
        self._owner = os.getpid()
        self.control: Final = control
        self._log = settings.with_suffix(".log")
        self._guard = Guard(settings.parent)
        try:
            with self._log.open("wb") as output:
                self._popen = subprocess.Popen(  # noqa: S603 - the program was looked up by us
                    [str(program), str(settings)],
                    cwd=settings.parent,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    # Ctrl-C in a terminal must reach only the tests; they stop the server.
                    start_new_session=True,
                )
        except BaseException:
            self._guard.dismiss()
            raise
        self._guard.watch(self._popen.pid)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def is_alive(self) -> bool:
        return self.is_ours and self._popen.poll() is None

    @property
    def is_ours(self) -> bool:
        """False in a forked child, which can neither wait for the server nor may stop it."""
        return os.getpid() == self._owner

    def wait_until_ready(self) -> None:
        """Return when the server answers. If it ends, raise an error with its output."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        last_error: Exception | None = None
        while time.monotonic() < deadline:
            if not self.is_alive:
                raise self._startup_error()
            try:
                if self.control.answers_as(self.pid):
                    return
            except (OSError, RefusedError) as error:  # not listening yet, or loading its data
                last_error = error
            time.sleep(POLL_S)
        raise RuntimeError(f"redis-server did not answer in {_START_TIMEOUT_S} s") from last_error

    def pause(self) -> None:
        self._popen.send_signal(signal.SIGSTOP)
        if hasattr(os, "waitid"):
            # Wait for the signal's effect, which comes later than send_signal returns.
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self._popen.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it, paused or not. Does nothing if it has ended."""
        self._popen.kill()
        self._reap()

    def shut_down(self) -> None:
        """Shut it down gracefully; kill it if that fails. Does nothing if it has ended."""
        self._popen.terminate()
        self.resume()  # a paused process handles SIGTERM only after this
        try:
            self._popen.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
        self._reap()

    def _reap(self) -> None:
        self._popen.wait()
        self._guard.dismiss()

    def _startup_error(self) -> Exception:
        text = self._log.read_text(encoding="utf-8", errors="replace")
        if "Address already in use" in text:
            return PortTakenError()
        return RuntimeError(f"redis-server did not start. Its output:\n{text.strip()}")
