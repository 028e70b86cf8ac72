"""``lock`` and ``alock``: the locks of SyncGuard, with an alias instead of a backend.

Arguments that the caller omits come from the alias (``TTL_MS``, ``ACQUISITION``, ``HOLD_UNTIL``).
The default holder is the name of the calling function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial

from syncguard import Acquisition, Held, LockError, OnLost, OnReleaseError, Signal, aio
from syncguard import lock as lock_on
from syncguard.aio import AsyncLock
from syncguard.current import call_on_lost
from syncguard_django.configured_backends import alocks, locks
from syncguard_django.hold_until_transaction_end import TransactionLock, slot_of
from syncguard_django.holder_label import label_of_caller
from syncguard_django.settings import DEFAULT_ALIAS, UNTIL, Until, configuration
from syncguard_django.signals import async_sender_of_events, loss_of, sender_of_events


def lock(
    key: str,
    ttl_ms: int | None = None,
    *,
    using: str = DEFAULT_ALIAS,
    acquisition: Acquisition | None = None,
    auto_extend: bool = False,
    max_hold_ms: int | None = None,
    holder: str | None = None,
    on_lost: OnLost | None = None,
    on_release_error: OnReleaseError | None = None,
    signal: Signal | None = None,
    reentrant: bool = False,
    until: Until | None = None,
) -> TransactionLock:
    """``syncguard.lock`` on the backend of an alias, for a ``with`` block or as a decorator.

    A block that ends inside an open transaction keeps its lock until the transaction has ended,
    unless ``until="block"``.
    """
    if until is not None and until not in UNTIL:
        raise LockError("InvalidArgument", "until must be 'transaction' or 'block'")
    backend = locks[using]
    settings = configuration().of(using)
    send_lost_signal = _with_lost_signal(None, using, backend.hash) if settings.telemetry else None
    if settings.telemetry and (auto_extend or on_lost is not None):
        on_lost = _with_lost_signal(on_lost, using, backend.hash)
    make = partial(
        lock_on,
        backend,
        key,
        settings.ttl_ms if ttl_ms is None else ttl_ms,
        acquisition=acquisition or settings.acquisition,
        auto_extend=auto_extend,
        max_hold_ms=max_hold_ms,
        holder=label_of_caller() if holder is None else holder,
        on_lost=on_lost,
        on_release_error=on_release_error,
        signal=signal,
        reentrant=reentrant,
    )
    return TransactionLock(
        make, slot_of(backend, key), until or settings.hold_until, send_lost_signal
    )


def alock(
    key: str,
    ttl_ms: int | None = None,
    *,
    using: str = DEFAULT_ALIAS,
    acquisition: Acquisition | None = None,
    auto_extend: bool = False,
    max_hold_ms: int | None = None,
    holder: str | None = None,
    on_lost: OnLost | None = None,
    on_release_error: OnReleaseError | None = None,
    signal: Signal | None = None,
    reentrant: bool = False,
) -> AsyncLock:
    """``syncguard.aio.lock`` on the backend of an alias, for ``async with`` in the running loop.

    The end of its block releases it, for any ``HOLD_UNTIL``: no transaction lasts across an
    ``await``.
    """
    backend = alocks[using]
    settings = configuration().of(using)
    if settings.telemetry and (auto_extend or on_lost is not None):
        on_lost = _with_lost_signal_async(on_lost, using, backend.hash)
    return aio.lock(
        backend,
        key,
        settings.ttl_ms if ttl_ms is None else ttl_ms,
        acquisition=acquisition or settings.acquisition,
        auto_extend=auto_extend,
        max_hold_ms=max_hold_ms,
        holder=label_of_caller() if holder is None else holder,
        on_lost=on_lost,
        on_release_error=on_release_error,
        signal=signal,
        reentrant=reentrant,
    )


# A heartbeat that cannot reach the server declares the lock lost by its own clock. That is not an
# operation, so telemetry has no event for it. Therefore ``on_lost`` sends the signal.


def _with_lost_signal(
    on_lost: OnLost | None, using: str, hash: Callable[[str], str]
) -> Callable[[Held], None]:
    def lost(held: Held) -> None:
        sender_of_events(using)(loss_of(hash(held.lock_id)))
        if on_lost is not None:
            call_on_lost(on_lost, held)

    return lost


def _with_lost_signal_async(
    on_lost: OnLost | None, using: str, hash: Callable[[str], str]
) -> OnLost:
    async def lost(held: Held) -> None:
        sending = async_sender_of_events(using)(loss_of(hash(held.lock_id)))
        if sending is not None:
            await sending
        result = None if on_lost is None else call_on_lost(on_lost, held)
        if inspect.isawaitable(result):
            await result

    return lost
