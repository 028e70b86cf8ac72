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
    """Somebody asked us to end."""


def main() -> int:
    options = _options()
    with _stoppable():
        try:
            with demo_processes.environment() as embedded:
                if options.check:
                    with demo_processes.worker(embedded):
                        return _check()
                with (
                    demo_processes.web_server(options.port) as address,
                    demo_processes.worker(embedded) as worker,
                ):
                    _welcome(address)
                    while True:
                        worker.require_alive()
                        time.sleep(0.5)
        except Stopped:
            _say("\nStopped, and nothing is left behind.")
            return 0 if not options.check else 1
        except (demo_processes.CannotStart, FileNotFoundError) as error:
            _say(f"The demo cannot run: {error}")
            return 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m example_project.demo", description=__doc__)
    parser.add_argument("--check", action="store_true", help="play every scene, print, and end")
    parser.add_argument("--port", type=int, help="for the web server; 0: any that is free")
    return parser.parse_args()


def _check() -> int:
    """Play every scene, print every step, and tell by the exit code whether all went well."""
    from django.core.management import call_command

    from example_project.story import director
    from example_project.story.performance import audience
    from example_project.story.scenes import KINDS

    audience.append(_tell)
    failed = 0
    began = time.monotonic()
    for number, kind in enumerate(KINDS.values(), start=1):
        _say(f"\n{number}. {kind.title}. {kind.text}")
        missing = kind.missing()
        if missing:
            _say(f"   -     not played: {missing}")
            continue
        scene = director.play(kind.name)
        assert scene is not None  # noqa: S101 - nobody else plays
        failed += not scene.ok
    _say("\nmanage.py syncguard_status, when all is done:")
    call_command("syncguard_status")
    outcome = "All is well" if not failed else f"{failed} of {len(KINDS)} scenes went WRONG"
    _say(f"\n{outcome}, after {time.monotonic() - began:.0f} s.")
    return 1 if failed else 0


def _tell(step: Step) -> None:
    mark = {None: "     ", True: "ok   ", False: "WRONG"}[step.ok]
    _say(f"   {mark} {step.text}")


def _welcome(address: str) -> None:
    from django.contrib.auth import get_user_model

    password = secrets.token_urlsafe(12)
    get_user_model().objects.create_superuser(USER, "", password)
    _say(
        f"\nThe demo is running:   {address}"
        f"\nThe locks in the admin: {address}admin/syncguard_django/lock/"
        f"\n  log in as {USER} with the password {password}"
        "\nThe locks in a terminal:"
        f"\n  SYNCGUARD_URL={os.environ['SYNCGUARD_URL']}"
        f" {os.path.relpath(sys.executable)} example_project/manage.py syncguard_status --watch"
        "\n\nCtrl-C stops everything."
    )


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """The first Ctrl-C, SIGTERM or SIGHUP ends the block; further ones do not disturb the end."""

    def stop(*_: object) -> None:
        for number in demo_processes.STOPPING:
            signal.signal(number, signal.SIG_IGN)
        raise Stopped

    before = {number: signal.signal(number, stop) for number in demo_processes.STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
