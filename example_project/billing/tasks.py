"""The tasks: three uses of ``@locked_task``, one at a time, once per period, once per queue."""

from __future__ import annotations

import datetime
import time
from typing import Any

from celery import shared_task
from django.db import transaction
from django.utils import timezone

from example_project.billing import bank
from example_project.billing.models import FeedImport, Invoice, Payment, Report
from example_project.story import journal
from syncguard import LockLost
from syncguard_celery import current_fence, inherited_fence, locked_task
from syncguard_django.fencing import StaleFence, guard

# Short, so that the lock of a killed process expires soon. A heartbeat extends it while the task
# runs.
INVOICE_TTL_MS = 2_000


# One at a time, the default: a task that finds the lock held is published again with a delay. A
# task whose process is killed, or that loses its lock, runs again.
@locked_task(
    key="invoice:{invoice_id}",
    ttl_ms=INVOICE_TTL_MS,
    acks_late=True,
    reject_on_worker_lost=True,
    autoretry_for=(LockLost,),
    retry_kwargs={"max_retries": 5, "countdown": 0},
)
def settle_invoice(invoice_id: int) -> None:
    """Pay an invoice and book the payment, once, however many tasks try."""
    invoice = Invoice.objects.get(pk=invoice_id)
    if invoice.settled_at is not None:
        return
    # The bank confirms by letter. This task is published under the lock, so it inherits the fence.
    confirm_by_letter.apply_async((invoice_id,), countdown=0.5)
    bank.pay(invoice)
    fence = current_fence()
    assert fence is not None  # noqa: S101 - we hold the lock
    with transaction.atomic():
        invoice.settled_at = timezone.now()
        invoice.save_fenced(fence, update_fields=["settled_at"])
        Payment.objects.create(invoice=invoice, fence=fence)


@shared_task(bind=True, max_retries=None)
def confirm_by_letter(self: Any, invoice_id: int) -> None:
    """File the bank's letter, unless a later holder has written to the invoice."""
    invoice = Invoice.objects.get(pk=invoice_id)
    if invoice.settled_at is None:
        raise self.retry(countdown=0.5)
    fence = inherited_fence(invoice.lock_key)
    assert fence is not None  # noqa: S101 - only settle_invoice sends letters
    invoice.confirmed_at = timezone.now()
    try:
        invoice.save_fenced(fence, update_fields=["confirmed_at"])
    except StaleFence as stale:
        journal.note("refused", fence=fence, detail=f"fence {stale.seen} has written since")
    else:
        journal.note("filed", fence=fence)


# Once per period: every machine's scheduler starts it, and clocks differ. The lock is kept for a
# while after a short run, so that a machine whose clock is late finds it held, and skips.
@locked_task(
    key="report:{day}", ttl_ms=10_000, min_hold_ms=3_000, on_contention="skip", acks_late=True
)
def nightly_report(day: str) -> None:
    """Count what was settled on a day."""
    date = datetime.date.fromisoformat(day)
    Report.objects.create(day=date, settled=Invoice.objects.filter(settled_at__date=date).count())


# Once per queue: delay() acquires the lock, so that an import that is queued or running is not
# queued again; the caller gets the result of the first one.
@locked_task(key="feed:{supplier}", ttl_ms=5_000, at="publish", on_contention="skip")
def import_feed(supplier: str) -> None:
    """Import a supplier's prices."""
    time.sleep(1.0)  # many rows
    fence = current_fence()
    assert fence is not None  # noqa: S101 - we hold the lock
    with transaction.atomic():
        guard(f"feed:{supplier}", fence)
        FeedImport.objects.create(supplier=supplier, fence=fence)
