"""What the shop keeps."""

from django.db import models

from syncguard_django.fencing import FencedModel


class Invoice(FencedModel):
    """Carries the fence of whoever wrote it last."""

    number = models.CharField(max_length=20, default="")
    settled = models.BooleanField(default=False)


class Payment(models.Model):
    """A plain row: only ``guard`` can protect it."""

    invoice_number = models.CharField(max_length=20)
    cents = models.IntegerField(default=0)
