"""``manage.py syncguard_status``: the live locks, and the health of the server that holds them.

Reads ``live_locks``, formats with ``status_output``, and prints. The exit code is 0; 1 for findings
or for a lock that is free; 2 for a server that did not answer.
"""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from django.core.management.color import no_style

from syncguard import hash_key
from syncguard_django import live_locks, status_output
from syncguard_django.live_locks import AliasHealth, Failure, Holder, LiveLock
from syncguard_django.management.lock_command import NO, NO_ANSWER, YES, LockCommand, aliases

_CURSOR_HOME: Final = "\x1b[H"
_ERASE_BELOW: Final = "\x1b[J"
_ERASE_LINE: Final = "\x1b[K"


class Command(LockCommand):
    help = (
        "Shows the live locks, sanitized, or checks the server behind them. With --key or"
        " --lock-id, the exit code is 0 if it is locked, 1 if it is free, 2 if that is unknown."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--using", metavar="ALIAS", help="only this alias; default: all")
        what = parser.add_mutually_exclusive_group()
        what.add_argument("--key", metavar="RAW_KEY", help="look up the lock of this key")
        what.add_argument("--lock-id", metavar="ID", help="look up the lock with this id")
        what.add_argument("--count", action="store_true", help="only count the live locks")
        what.add_argument(
            "--check",
            action="store_true",
            help="report the server's state; exit code 0, 1 or 2",
        )
        parser.add_argument("--format", choices=("table", "json", "ndjson"), default="table")
        parser.add_argument("--limit", type=_positive, default=100, help="show at most this many")
        parser.add_argument(
            "--watch",
            nargs="?",
            type=_seconds,
            const=2.0,
            metavar="SECONDS",
            help="repeat every SECONDS, by default every 2, until Ctrl-C",
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        if not self.stdout.isatty():
            self.style = no_style()
        self._aliases = aliases(options["using"])
        self._options = options
        show = self._chosen()
        try:
            code = self._watch(show, options["watch"]) if options["watch"] else self._once(show)
        except BrokenPipeError:  # the reader, such as head, has closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return
        if code:
            sys.exit(code)

    def _chosen(self) -> Callable[[], tuple[list[str], list[Failure], int]]:
        if self._options["check"]:
            return self._show_check
        if self._options["count"]:
            return self._show_counts
        looks_up = self._options["key"] is not None or self._options["lock_id"] is not None
        return self._show_lookup if looks_up else self._show_locks

    # -- once, or repeatedly ------------------------------------------------------------------

    def _once(self, show: Callable[[], tuple[list[str], list[Failure], int]]) -> int:
        lines, failures, code = show()
        if any(lines):
            self.stdout.write("\n".join(lines))
        for failure in failures:
            self.stderr.write(str(failure))
        return NO_ANSWER if failures else code

    def _watch(
        self, show: Callable[[], tuple[list[str], list[Failure], int]], seconds: float
    ) -> int:
        try:
            while True:
                lines, failures, _ = show()
                self._draw([*lines, *(self.style.ERROR(str(failure)) for failure in failures)])
                time.sleep(seconds)
        except KeyboardInterrupt:
            return YES

    def _draw(self, lines: Sequence[str]) -> None:
        if self.stdout.isatty():
            body = "".join(f"{line}{_ERASE_LINE}\n" for line in "\n".join(lines).splitlines())
            self.stdout.write(_CURSOR_HOME + body + _ERASE_BELOW, ending="")
        else:
            self.stdout.write("\n".join(lines))
        self.stdout.flush()

    # -- what to show: lines for stdout, failures for stderr, the exit code -------------------

    def _show_locks(self) -> tuple[list[str], list[Failure], int]:
        listing = live_locks.page(self._aliases, self._options["limit"])
        found, total, failures = listing.locks, listing.total, list(listing.failures)
        if self._options["format"] != "table":
            return [self._json(map(status_output.lock_as_json, found))], failures, YES
        lines = self._table(found)
        if not found and len(failures) < len(self._aliases):
            lines = ["No live locks."]
        if total > len(found) and found:
            lines.append(f"{len(found):,} of {total:,} live locks, soonest to expire first.")
        return lines, failures, YES

    def _show_lookup(self) -> tuple[list[str], list[Failure], int]:
        key, lock_id = self._options["key"], self._options["lock_id"]
        answers = [
            live_locks.attempt(using, partial(live_locks.lookup, using, key=key, lock_id=lock_id))
            for using in self._aliases
        ]
        failures = [answer for answer in answers if isinstance(answer, Failure)]
        found = [answer.lock for answer in answers if isinstance(answer, Holder)]
        code = YES if found else NO
        if self._options["format"] != "table":
            more = {} if key is None else {"specKeyHash": hash_key(key)}
            return [self._json(status_output.lock_as_json(k) | more for k in found)], failures, code
        lines = self._table(found)
        if not found and len(failures) < len(self._aliases):
            lines = ["Not locked."]
        if lines and key is not None:
            lines += ["", *status_output.both_hashes(list(self._hashes(key)), hash_key(key))]
        return lines, failures, code

    def _table(self, found: Sequence[LiveLock]) -> list[str]:
        if not found:
            return []
        lines = status_output.table(found, with_alias=len(self._aliases) > 1)
        return [self.style.MIGRATE_HEADING(lines[0]), *lines[1:]]

    def _hashes(self, key: str) -> Iterator[tuple[str, str]]:
        for using in self._aliases:
            answer = live_locks.attempt(using, partial(live_locks.hash_of, using, key))
            if not isinstance(answer, Failure):
                yield using, answer

    def _show_counts(self) -> tuple[list[str], list[Failure], int]:
        answers = [
            (using, live_locks.attempt(using, partial(live_locks.count, using)))
            for using in self._aliases
        ]
        counts = [(using, found) for using, found in answers if not isinstance(found, Failure)]
        failures = [found for _, found in answers if isinstance(found, Failure)]
        if self._options["format"] != "table":
            items = [{"alias": using, "liveLocks": count} for using, count in counts]
            return [self._json(items)], failures, YES
        if len(self._aliases) == 1:
            return [str(count) for _, count in counts], failures, YES
        return [f"{using}: {count}" for using, count in counts], failures, YES

    def _show_check(self) -> tuple[list[str], list[Failure], int]:
        answers = [
            live_locks.attempt(using, partial(live_locks.health, using)) for using in self._aliases
        ]
        reports = [answer for answer in answers if isinstance(answer, AliasHealth)]
        failures = [answer for answer in answers if isinstance(answer, Failure)]
        code = NO if any(report.report.findings for report in reports) else YES
        if self._options["format"] != "table":
            items = [
                *map(status_output.health_as_json, reports),
                *map(status_output.failure_as_json, failures),
            ]
            return [self._json(items)], failures, code
        return [line for report in reports for line in self._report(report)], failures, code

    def _report(self, health: AliasHealth) -> list[str]:
        findings = health.report.findings
        verdict = self.style.WARNING("warnings") if findings else self.style.SUCCESS("healthy")
        return [
            f"{health.using}: {verdict}",
            *status_output.health_lines(health),
            *(self.style.WARNING(f"  warning: {finding}") for finding in findings),
        ]

    def _json(self, items: Any) -> str:
        return status_output.as_json(items, lines=self._options["format"] == "ndjson")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError("must be a whole number above 0")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 86_400:
        raise ArgumentTypeError("must be a number of seconds, at least 0.1")
    return value
