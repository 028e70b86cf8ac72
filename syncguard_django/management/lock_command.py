"""What the commands about locks have in common: which aliases, and how they end.

They answer a question with their exit code, so 1 must mean "no" and nothing else. Whatever keeps
them from an answer ends with 2, also a wrong setting, for which Django would end with 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError

from syncguard_django.checks import TAG
from syncguard_django.configured_backends import locks

YES: Final = 0
NO: Final = 1
NO_ANSWER: Final = 2

_VALUED: Final = ("--lock-id", "--key")


class LockCommand(BaseCommand):
    """A command that asks about locks."""

    requires_system_checks = (TAG,)

    def run_from_argv(self, argv: list[str]) -> None:
        # One lock id in 64 begins with a dash, and a key may. argparse would read an option.
        super().run_from_argv([*argv[:2], *_values_joined(argv[2:])])

    def check(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().check(*args, **kwargs)
        except CommandError as error:
            error.returncode = NO_ANSWER
            raise


def aliases(using: str | None) -> tuple[str, ...]:
    """The alias that was named, or all of them."""
    known = tuple(locks)
    if using is None:
        return known
    if using not in known:
        raise no_answer(f"SYNCGUARD has no such alias; it has {', '.join(known)}")
    return (using,)


def no_answer(text: str) -> CommandError:
    return CommandError(text, returncode=NO_ANSWER)


def _values_joined(arguments: Sequence[str]) -> list[str]:
    """``--lock-id -x`` as ``--lock-id=-x``, which argparse reads as it was meant."""
    joined: list[str] = []
    for argument in arguments:
        if joined and joined[-1] in _VALUED:
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined
