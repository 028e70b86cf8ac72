"""Shared by the commands about locks: the choice of aliases, and the exit codes.

The exit code is the answer: 1 means "no" and nothing else. Every error exits with 2, also an
invalid setting, for which Django would exit with 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError, CommandParser

from syncguard_django.checks import TAG
from syncguard_django.configured_backends import locks

YES: Final = 0
NO: Final = 1
NO_ANSWER: Final = 2

_OPTIONS_WITH_VALUE: Final = ("--lock-id", "--key")


class _DashParser(CommandParser):
    """Takes values that begin with a dash, on the command line and from ``call_command``.

    One lock id in 64 begins with a dash, and a key may too. argparse would read such a value as an
    option.
    """

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        return super().parse_args(_values_joined(args), namespace)


class LockCommand(BaseCommand):
    """A command about locks."""

    requires_system_checks = (TAG,)

    def create_parser(self, *args: Any, **kwargs: Any) -> CommandParser:
        made = super().create_parser(*args, **kwargs)
        return _DashParser(
            parents=[made],
            add_help=False,  # its parent has it
            prog=made.prog,
            description=made.description,
            formatter_class=made.formatter_class,
            called_from_command_line=made.called_from_command_line,
        )

    def check(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().check(*args, **kwargs)
        except CommandError as error:
            error.returncode = NO_ANSWER
            raise


def aliases(using: str | None) -> tuple[str, ...]:
    """The given alias, or all aliases."""
    known = tuple(locks)
    if using is None:
        return known
    if using not in known:
        raise no_answer(f"SYNCGUARD has no such alias; it has {', '.join(known)}")
    return (using,)


def no_answer(text: str) -> CommandError:
    return CommandError(text, returncode=NO_ANSWER)


def _values_joined(arguments: Sequence[str]) -> list[str]:
    """``--lock-id -x`` as ``--lock-id=-x``, which argparse reads as a value."""
    joined: list[str] = []
    for argument in arguments:
        if joined and joined[-1] in _OPTIONS_WITH_VALUE:
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined
