"""The task of the README: ``test_shop.py`` makes sure that it is the very same."""

from shop.models import Invoice
from syncguard_celery import current_fence, locked_task


@locked_task(key="invoice:{invoice_id}")
def settle(invoice_id):
    invoice = Invoice.objects.get(pk=invoice_id)
    if invoice.settled:
        return "was settled before"
    invoice.settled = True
    invoice.save_fenced(current_fence())
    return "settled"
