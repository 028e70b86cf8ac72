from __future__ import annotations

from django.db import models

from syncguard_django.fencing import FencedModel


class Account(FencedModel):
    owner = models.CharField(max_length=40, default="")
    balance = models.IntegerField(default=0)
