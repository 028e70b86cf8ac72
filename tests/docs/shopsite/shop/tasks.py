"""A task for the pages to talk of."""

from shop.models import Invoice
from syncguard_celery import current_fence, locked_task


@locked_task(key="invoice:{invoice_id}")
def settle(invoice_id: int) -> str:
    invoice = Invoice.objects.get(pk=invoice_id)
    if invoice.settled:
        return "was settled before"
    invoice.settled = True
    fence = current_fence()
    if fence is None:  # a test without locks
        invoice.save()
    else:
        invoice.save_fenced(fence)
    return "settled"
