"""How ``lock()`` acquires its lock, as a generator that neither blocks nor awaits.

It yields the next step, an ``Attempt`` or a ``Pause``, and receives the result by ``send``. A
blocking and an asyncio driver execute the steps; a test drives it with its own clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Final, TypeVar, cast

from syncguard._backend.optional import Refusal
from syncguard.errors import AcquisitionTimeout, ErrorContext
from syncguard.types import Acquisition

GrantT = TypeVar("GrantT")

_NEVER: Final = float("inf")

MAX_DELAY_MS: Final = 3_600_000
"""The longest delay: exponential backoff stops doubling here, before a float overflows."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Try once. Send back the grant, or the refusal."""

    wait_ms: int
    """How long the pause after a refusal will be; 0 if there will be no pause."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait this long, or until woken. Send back True if woken."""

    ms: float


Acquiring = Generator[Attempt | Pause, GrantT | Refusal | bool, GrantT]


def backoff_ms(policy: Acquisition, retries: int, chance: Callable[[], float]) -> float:
    """The delay before the next retry, after ``retries``. ``chance`` returns a number in [0, 1)."""
    delay = float(policy.retry_delay_ms)
    if policy.backoff == "exponential":
        delay = min(delay * 2.0 ** min(retries, 64), MAX_DELAY_MS)
    if policy.jitter == "equal":
        return delay / 2 + delay / 2 * chance()
    if policy.jitter == "full":
        return delay * chance()
    return delay


def acquiring(
    policy: Acquisition,
    clock_ms: Callable[[], float],
    chance: Callable[[], float] = random.random,
    *,
    key: str | None = None,
) -> Acquiring[GrantT]:
    """Yield attempts and pauses until the lock is granted. Raises ``AcquisitionTimeout``."""
    deadline = clock_ms() + policy.timeout_ms
    retries = 0
    while True:
        delay = backoff_ms(policy, retries, chance)
        last = retries >= policy.max_retries
        pause = 0.0 if last else max(0.0, min(delay, deadline - clock_ms()))
        answer = yield Attempt(wait_ms=int(pause))
        if not isinstance(answer, Refusal):
            return cast("GrantT", answer)
        left = deadline - clock_ms()
        if last or left <= 0:
            raise AcquisitionTimeout(_timeout_message(policy, last), ErrorContext(key=key))
        pause = min(delay, left)
        # Wait no longer than the holder's lock can last.
        expires_in = _NEVER if answer.remaining_ms is None else answer.remaining_ms + 1
        woken = yield Pause(min(pause, expires_in))
        # Only a delay that ended without a wake-up is a retry. If wake-ups counted, waiters for
        # a busy lock would use up their retries long before timeout_ms.
        if not woken and pause <= expires_in:
            retries += 1


def _timeout_message(policy: Acquisition, retries_used_up: bool) -> str:
    retries, time = f"after {policy.max_retries} retries", f"within {policy.timeout_ms} ms"
    limit = retries if retries_used_up else time
    return f"the lock could not be acquired {limit}: somebody else holds it"
