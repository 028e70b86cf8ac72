"""Runs contenders in turns, so that other load on the machine affects all of them alike."""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Callable, Iterator, Sequence

from syncguard.testing import RedisServer

Times = dict[str, list[float]]


@contextlib.contextmanager
def pinned_server() -> Iterator[RedisServer]:
    """A private Redis on the second core, this process on the first, where there are two."""
    with RedisServer() as server:
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        if len(cores) > 1:
            os.sched_setaffinity(0, {cores[0]})
            os.sched_setaffinity(server.pid, {cores[1]})
        yield server


def alternate(contenders: dict[str, Callable[[], float]], rounds: int) -> Times:
    """What each contender returned, in each round. The one that begins changes."""
    for run in contenders.values():  # to open connections and load scripts
        run()
    names = list(contenders)
    found: Times = {name: [] for name in names}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            found[name].append(contenders[name]())
    return found


def ratio(mine: Sequence[float], other: Sequence[float]) -> float:
    """The median of the ratios in the rounds."""
    return statistics.median(a / b for a, b in zip(mine, other, strict=True))


def difference(mine: Sequence[float], other: Sequence[float]) -> float:
    """The median of the differences in the rounds."""
    return statistics.median(a - b for a, b in zip(mine, other, strict=True))
