"""The demo in one command: ``python -m example_project.demo``, or with ``--check`` no browser.

Ctrl-C or SIGTERM stops everything that it started.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from example_project import demo_processes

if TYPE_CHECKING:
    from example_project.story.models import Step

USER = "admin"


class Stopped(BaseException):
    """A signal asked the demo to stop."""


def main() -> int:
    options = _options()
    with _stop_on_signals():
        try:
            with demo_processes.environment() as pause:
                if options.check:
                    with demo_processes.worker(pause):
                        return _check()
                with (
                    demo_processes.web_server(options.port) as address,
                    demo_processes.worker(pause) as worker,
                ):
                    _welcome(address)
                    while True:
                        worker.require_alive()
                        time.sleep(0.5)
        except Stopped:
            _print("\nStopped. Nothing is left behind.")
            return 0 if not options.check else 1
        except (demo_processes.CannotStart, FileNotFoundError) as error:
            _print(f"The demo cannot run: {error}")
            return 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m example_project.demo", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="play every scene, print the steps, and exit"
    )
    parser.add_argument("--port", type=int, help="port of the web server; 0: any free port")
    return parser.parse_args()


def _check() -> int:
    """Play every scene, print every step, and return an exit code: 0 if all checks passed."""
    from django.core.management import call_command

    from example_project.story import scene_player
    from example_project.story.scene_run import step_listeners
    from example_project.story.scenes import KINDS

    step_listeners.append(_print_step)
    failed = 0
    began = time.monotonic()
    for number, kind in enumerate(KINDS.values(), start=1):
        _print(f"\n{number}. {kind.title}. {kind.text}")
        missing = kind.missing()
        if missing:
            _print(f"   -     not played: {missing}")
            continue
        scene = scene_player.play(kind.name)
        assert scene is not None  # noqa: S101 - no other scene is being played
        failed += not scene.ok
    _print("\nmanage.py syncguard_status, when all is done:")
    call_command("syncguard_status")
    outcome = "All scenes passed" if not failed else f"{failed} of {len(KINDS)} scenes went WRONG"
    _print(f"\n{outcome}, after {time.monotonic() - began:.0f} s.")
    return 1 if failed else 0


def _print_step(step: Step) -> None:
    mark = {None: "     ", True: "ok   ", False: "WRONG"}[step.ok]
    _print(f"   {mark} {step.text}")


def _welcome(address: str) -> None:
    from django.contrib.auth import get_user_model

    password = secrets.token_urlsafe(12)
    get_user_model().objects.create_superuser(USER, "", password)
    _print(
        f"\nThe demo is running:   {address}"
        f"\nThe locks in the admin: {address}admin/syncguard_django/lock/"
        f"\n  log in as {USER} with the password {password}"
        "\nThe locks in a terminal:"
        f"\n  SYNCGUARD_URL={os.environ['SYNCGUARD_URL']}"
        f" {os.path.relpath(sys.executable)} example_project/manage.py syncguard_status --watch"
        "\n\nCtrl-C stops everything."
    )


@contextlib.contextmanager
def _stop_on_signals() -> Iterator[None]:
    """The first Ctrl-C, SIGTERM or SIGHUP ends the block; later ones are ignored."""

    def stop(*_: object) -> None:
        for number in handled:
            signal.signal(number, signal.SIG_IGN)
        raise Stopped

    def stop_again(unraisable: sys.UnraisableHookArgs) -> None:
        if isinstance(unraisable.exc_value, Stopped):
            # The signal came while a destructor ran, which cannot raise. Try again outside of it.
            signal.signal(signal.SIGALRM, stop)
            signal.setitimer(signal.ITIMER_REAL, 0.01)
        else:
            hook_before(unraisable)

    handled = (*demo_processes.STOP_SIGNALS, signal.SIGALRM)
    hook_before, sys.unraisablehook = sys.unraisablehook, stop_again
    before = {number: signal.signal(number, stop) for number in handled}
    try:
        yield
    finally:
        sys.unraisablehook = hook_before
        for number, handler in before.items():
            signal.signal(number, handler)


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
