"""The checker: decides over the whole history of a run whether the locks kept their promises.

One function for each rule. A rule yields the violations that it finds, and never raises: a broken
history is what it is made for. It only uses what a worker knew at the time, so a violation is
certain; where the order of two events cannot be known, the history is right.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from history.log import Event

HANG_MS: Final = 60_000.0
"""A call that takes longer hangs: far above every time-out of the workers."""


UNEXPECTED: Final = ("Internal", "InvalidArgument")
"""The codes of errors that hardly any fault of a server or of the network explains."""


def notice_ms(ttl_ms: int) -> float:
    """How long before the deadline the heartbeat tells the holder, at most: see ``schedule``."""
    return min(20.0, ttl_ms / 50)


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule, and the events that prove it."""

    rule: str
    text: str
    events: tuple[Event, ...] = ()

    def __str__(self) -> str:
        return "\n    ".join([f"{self.rule}: {self.text}", *map(str, self.events)])


@dataclass(slots=True)
class Hold:
    """One lock id: how it was granted, and what happened to it."""

    granted: Event
    events: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))

    def __getitem__(self, kind: str) -> list[Event]:
        return self.events[kind]

    @property
    def ended_at(self) -> float | None:
        """When its block ended; None if it did not end, because its process was killed."""
        return self["leaving"][0].at if self["leaving"] else None


class History:
    """The events of one run, by key and lock id."""

    def __init__(self, events: Iterable[Event], explained_errors: Container[str] = ()) -> None:
        self.explained_errors = explained_errors
        self.events = sorted(events, key=lambda event: event.at)
        self.holds: dict[str, Hold] = {
            event.lock: Hold(event) for event in self.events if event.kind == "granted"
        }
        for event in self.events:
            if event.lock in self.holds and event.kind != "granted":
                self.holds[event.lock][event.kind].append(event)
        self.by_key: dict[str, list[Hold]] = defaultdict(list)
        for hold in self.holds.values():
            self.by_key[hold.granted.key].append(hold)

    def later_holds(self, hold: Hold) -> Iterator[Hold]:
        """The holds of the same key with a larger fence, unless they were certainly before it.

        A store that lost its data begins with small fences again. That breaks one rule, not all.
        """
        granted = hold.granted
        for other in self.by_key[granted.key]:
            if other.granted.fence > granted.fence and other.granted.at >= granted.sent_at:
                yield other


Rule = Callable[[History], Iterator[Violation]]


def check(events: Iterable[Event], explained_errors: Container[str] = ()) -> list[Violation]:
    """All violations of all rules. ``explained_errors`` are codes that the fault explains."""
    history = History(events, explained_errors)
    return [violation for rule in RULES for violation in rule(history)]


def one_believed_holder(history: History) -> Iterator[Violation]:
    """At most one holder believes in its lock at any moment.

    A holder that believed at a moment believed from the beginning: ``lost`` never becomes False
    again. A forked child is another holder than its parent.
    """
    for holds in history.by_key.values():
        spans = sorted(
            (span for hold in holds for span in _believed_spans(hold)), key=lambda span: span[0].at
        )
        latest: tuple[Event, Event] | None = None
        for span in spans:
            if latest is not None and span[0].at <= latest[1].at:
                yield Violation(
                    "one believed holder", "two holders at the same time", (*latest, *span)
                )
            if latest is None or span[1].at > latest[1].at:
                latest = span


def _believed_spans(hold: Hold) -> Iterator[tuple[Event, Event]]:
    """For each process: the first and the last moment at which it certainly believed.

    A process may be stopped between the answer of the library and the line in the log. So a grant
    begins a span, but only a belief, whose time was read before the lock was asked, ends one.
    """
    beliefs = sorted(hold["believed"], key=lambda event: event.pid)
    for pid, group in itertools.groupby(beliefs, key=lambda event: event.pid):
        ordered = sorted(group, key=lambda event: event.at)
        first = hold.granted if pid == hold.granted.pid else ordered[0]
        yield first, ordered[-1]


def fences_increase(history: History) -> Iterator[Violation]:
    """Fences strictly increase in the order of grants.

    Of two grants whose requests overlapped the order is not known: then their fences only differ.
    """
    for holds in history.by_key.values():
        grants = [hold.granted for hold in holds if not hold.granted.adopted]
        seen: dict[str, Event] = {}
        for grant in grants:
            first = seen.setdefault(grant.fence, grant)
            if first is not grant:
                yield Violation("fences increase", "a fence repeats", (first, grant))
        answered = sorted(grants, key=lambda grant: grant.at)
        before: list[Event] = []  # the largest fence of what was answered so far, at its end
        position = 0
        for grant in sorted(grants, key=lambda grant: grant.sent_at):
            while position < len(answered) and answered[position].at < grant.sent_at:
                if not before or answered[position].fence > before[-1].fence:
                    before.append(answered[position])
                position += 1
            is_lower = bool(before) and before[-1].fence > grant.fence
            if is_lower and seen[grant.fence] is grant:  # else it repeats one, as is said above
                yield Violation("fences increase", "a fence went down", (before[-1], grant))


def nothing_after_a_later_grant(history: History) -> Iterator[Violation]:
    """Nothing is extended or released after a later grant."""
    for hold in history.holds.values():
        later = sorted((other.granted for other in history.later_holds(hold)), key=lambda g: g.at)
        if not later:
            continue
        first = later[0]
        for kind in ("extended", "released"):
            for event in hold[kind]:
                if event.ok and not event.assumed and event.sent_at > first.at:
                    yield Violation(
                        "nothing after a later grant",
                        f"{kind} after somebody else got the lock",
                        (hold.granted, first, event),
                    )
        for event in hold["believed"]:
            # The heartbeat's extensions are known by the deadline that they moved.
            if event.deadline - hold.granted.ttl_ms > first.at:
                yield Violation(
                    "nothing after a later grant",
                    "a heartbeat extended it after somebody else got the lock",
                    (hold.granted, first, event),
                )


def released_once(history: History) -> Iterator[Violation]:
    """A lock is released once. A release whose reply was lost is not counted."""
    for hold in history.holds.values():
        released = [event for event in hold["released"] if event.ok and not event.assumed]
        if len(released) > 1:
            yield Violation("released once", "released again", (hold.granted, *released))


def overtaken_are_told(history: History) -> Iterator[Violation]:
    """LockLost is told to whoever was overtaken."""
    for hold in history.holds.values():
        ended_at = hold.ended_at
        if ended_at is None or not hold["left"] or hold["told"]:
            continue
        for other in history.later_holds(hold):
            if other.granted.at <= ended_at:
                yield Violation(
                    "overtaken are told",
                    "its block ended without LockLost",
                    (hold.granted, other.granted, hold["leaving"][0], hold["left"][0]),
                )
                break


def nobody_else_is_told(history: History) -> Iterator[Violation]:
    """LockLost is told to nobody whose lock was neither overtaken nor past its deadline.

    At the end of a block it is judged by the moment of the release: a slow release is no loss.
    """
    for hold in history.holds.values():
        if not hold["told"]:
            continue
        told = hold["told"][0]
        judged_at = told.at
        if told.text == "left" and hold["released"]:
            judged_at = min(event.sent_at for event in hold["released"])
        overtaken = any(other.granted.sent_at <= judged_at for other in history.later_holds(hold))
        is_parents = told.pid != hold.granted.pid
        lost_at = told.deadline - notice_ms(hold.granted.ttl_ms)
        if lost_at > judged_at and not overtaken and not is_parents:
            yield Violation(
                "nobody else is told",
                "LockLost without a loss",
                (hold.granted, *hold["believed"][-1:], *hold["released"], told),
            )


def everything_expires(history: History) -> Iterator[Violation]:
    """No key is left without a TTL."""
    for event in history.events:
        if event.kind == "unlimited":
            yield Violation("everything expires", event.text, (event,))


def nothing_hangs(history: History) -> Iterator[Violation]:
    """Every call ends, within a time that no time-out of a worker reaches."""
    killed = {event.pid for event in history.events if event.kind == "killed"}
    begun: dict[tuple[int, str, int], Event] = {}
    for event in history.events:
        where = (event.pid, event.worker, event.call)
        if event.kind == "begin":
            begun[where] = event
        elif event.kind == "end" and where in begun:
            start = begun.pop(where)
            if event.at - start.at > HANG_MS:
                yield Violation("nothing hangs", f"{start.text} took too long", (start, event))
    for start in begun.values():
        if start.pid not in killed:
            yield Violation("nothing hangs", f"{start.text} never ended", (start,))


def no_foreign_exception(history: History) -> Iterator[Violation]:
    """Nothing but a LockError is raised."""
    for event in history.events:
        if event.kind == "foreign":
            yield Violation("no foreign exception", event.text, (event,))


def no_unexpected_error(history: History) -> Iterator[Violation]:
    """No call, release or extension ends with the code of a mistake in the library."""
    unexpected = {code for code in UNEXPECTED if code not in history.explained_errors}
    for event in history.events:
        if event.kind in ("end", "released", "extended") and event.text in unexpected:
            yield Violation("no unexpected error", event.text, (event,))


RULES: Final[tuple[Rule, ...]] = (
    one_believed_holder,
    fences_increase,
    nothing_after_a_later_grant,
    released_once,
    overtaken_are_told,
    nobody_else_is_told,
    everything_expires,
    nothing_hangs,
    no_foreign_exception,
    no_unexpected_error,
)
