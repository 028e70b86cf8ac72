"""What the locks protect. An invoice stores the fence of the holder that wrote it last."""

from __future__ import annotations

from django.db import models

from syncguard_django.fencing import FencedModel


class Invoice(FencedModel):
    customer = models.CharField(max_length=100)
    amount = models.DecimalField(max_digits=10, decimal_places=2)
    bank_ms = models.PositiveIntegerField("time the bank takes (ms)", default=500)
    settled_at = models.DateTimeField(null=True, blank=True)
    confirmed_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return self.number

    @property
    def number(self) -> str:
        return f"INV-{1000 + self.pk}"

    @property
    def lock_key(self) -> str:
        return f"invoice:{self.pk}"


class Transfer(models.Model):
    """A payment at the bank. It pays each invoice number once, however often it is requested."""

    invoice = models.OneToOneField(Invoice, on_delete=models.CASCADE)


class Payment(models.Model):
    """A payment in our books. There must never be two for one invoice."""

    invoice = models.ForeignKey(Invoice, on_delete=models.CASCADE)
    fence = models.CharField(max_length=15)
    booked_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"payment of {self.invoice}"


class Report(models.Model):
    """What happened on a day; written at night, by one machine."""

    day = models.DateField()
    settled = models.PositiveIntegerField()
    written_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"report of {self.day}"


class FeedImport(models.Model):
    """One import of a supplier's price feed."""

    supplier = models.CharField(max_length=100)
    fence = models.CharField(max_length=15)
    imported_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"prices of {self.supplier}"
