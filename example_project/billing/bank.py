"""A slow bank. It pays an invoice number once; a repeated request returns soon."""

from __future__ import annotations

import time

from example_project.billing.models import Invoice, Transfer

REPEATED_S = 0.3


def pay(invoice: Invoice) -> None:
    _, is_new = Transfer.objects.get_or_create(invoice=invoice)
    time.sleep(invoice.bank_ms / 1000 if is_new else REPEATED_S)
