"""One running redis-server process: from its start, through signals, to its reaping.

It knows nothing of data folders that outlive it or of ports that are chosen; ``redis_server`` does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Final

from syncguard.testing.redis_server_control import Control, RefusedError
from syncguard.testing.redis_server_guard import Guard

_START_TIMEOUT_S: Final = 30.0
_STOP_TIMEOUT_S: Final = 10.0
POLL_S: Final = 0.005


class PortTakenError(Exception):
    """Somebody else bound the port between its choice and the start of the server."""


class ServerProcess:
    """Started on construction; it belongs to the process that constructed it."""

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
                    # Ctrl-C in a terminal is for the tests; they stop the server themselves.
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
        """False in a forked child: it can neither reap the server nor may it stop it."""
        return os.getpid() == self._owner

    def wait_until_ready(self) -> None:
        """Return when the server answers; raise, with what it said, when it gave up."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        trouble: Exception | None = None
        while time.monotonic() < deadline:
            if not self.is_alive:
                raise self._startup_error()
            try:
                if self.control.answers_as(self.pid):
                    return
            except (OSError, RefusedError) as error:  # not listening yet, or loading its data
                trouble = error
            time.sleep(POLL_S)
        raise RuntimeError(f"redis-server did not answer in {_START_TIMEOUT_S} s") from trouble

    def pause(self) -> None:
        self._popen.send_signal(signal.SIGSTOP)
        if hasattr(os, "waitid"):
            # The signal takes effect a little later than it is sent.
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self._popen.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once, paused or not. Also for one that has ended."""
        self._popen.kill()
        self._reap()

    def shut_down(self) -> None:
        """End it gracefully if it can be, and by force if not. Also for one that has ended."""
        self._popen.terminate()
        self.resume()  # a stopped process sees SIGTERM only now
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
        return RuntimeError(f"redis-server did not start. It said:\n{text.strip()}")
