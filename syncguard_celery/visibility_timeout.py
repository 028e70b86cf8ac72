"""How long a broker waits for an acknowledgement before it delivers a message again."""

from __future__ import annotations

from celery import Celery


def below_visibility_timeout(app: Celery, delay_ms: float) -> float:
    """This delay, or half of the broker's ``visibility_timeout`` where that is shorter.

    A worker keeps a message that is not due yet, and does not acknowledge it. Redis and SQS deliver
    a message again that is not acknowledged within that time.
    """
    timeout_s = (app.conf.broker_transport_options or {}).get("visibility_timeout")
    if not isinstance(timeout_s, (int, float)):
        return delay_ms
    return min(delay_ms, timeout_s * 1000 / 2)
