"""A bank that takes its time. It pays an invoice number once; asked again, it answers at once."""

from __future__ import annotations

import time

from example_project.billing.models import Invoice, Transfer

KNOWN_ALREADY_S = 0.3


def pay(invoice: Invoice) -> None:
    _, is_new = Transfer.objects.get_or_create(invoice=invoice)
    time.sleep(invoice.bank_ms / 1000 if is_new else KNOWN_ALREADY_S)
