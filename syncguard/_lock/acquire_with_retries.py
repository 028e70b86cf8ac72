"""How ``lock()`` acquires its lock, as a generator that neither blocks nor awaits.

It yields the next step, an ``Attempt`` or a ``Pause``, and receives the result by ``send``. A
blocking and an asyncio driver execute the steps; a test drives it with its own clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from typing import Final, NamedTuple, TypeVar, cast

from syncguard._backend.optional import Refusal
from syncguard.errors import AcquisitionTimeout, ErrorContext, NetworkTimeout
from syncguard.types import Acquisition

GrantT = TypeVar("GrantT")

_NEVER: Final = float("inf")

MAX_DELAY_MS: Final = 3_600_000
"""The longest delay: exponential backoff stops doubling here, before a float overflows."""


MIN_ATTEMPT_MS: Final = 500
"""Each attempt may take this long, however little of ``timeout_ms`` is left.

The last attempt begins when the time is over, and with ``timeout_ms=0`` the only one does too.
"""


class Attempt(NamedTuple):
    """Try once. Send back the grant, the refusal, or the NetworkTimeout."""

    wait_ms: int
    """How long the pause after a refusal will be; 0 if there will be no pause."""
    deadline_ms: float
    """When the attempt must end, on the clock of the generator."""


class Pause(NamedTuple):
    """Wait this long, or until woken. Send back True if woken."""

    ms: float


Acquiring = Generator[Attempt | Pause, GrantT | Refusal | NetworkTimeout | bool, GrantT]


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
    refused = False
    while True:
        delay = backoff_ms(policy, retries, chance)
        last = retries >= policy.max_retries
        now = clock_ms()
        pause = 0.0 if last else max(0.0, min(delay, deadline - now))
        attempt_ends = max(deadline, now + MIN_ATTEMPT_MS)
        answer = yield Attempt(wait_ms=int(pause), deadline_ms=attempt_ends)
        if isinstance(answer, NetworkTimeout):
            # A server that is only slow did not have the time to answer the last attempt. The
            # lock was held by somebody else until then: that is contention, not an outage.
            if refused and attempt_ends > deadline:
                message = _timeout_message(policy, retries_used_up=False)
                raise AcquisitionTimeout(message, ErrorContext(key=key)) from answer
            raise answer
        if not isinstance(answer, Refusal):
            return cast("GrantT", answer)
        refused = True
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
