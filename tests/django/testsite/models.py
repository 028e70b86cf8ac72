from __future__ import annotations

import uuid

from django.contrib.contenttypes.fields import GenericForeignKey, GenericRelation
from django.contrib.contenttypes.models import ContentType
from django.db import models

from syncguard_django.fencing import FencedModel, FenceNeverDecreases


class Account(FencedModel):
    owner = models.CharField(max_length=40, default="")
    balance = models.IntegerField(default=0)


class Branch(models.Model):
    """Has fenced rows behind every kind of related manager."""

    name = models.CharField(max_length=40, default="")
    notes = GenericRelation("Entry")


class Entry(FencedModel):
    text = models.CharField(max_length=40, default="", unique=True)
    number = models.IntegerField(default=0)
    branch = models.ForeignKey(Branch, models.CASCADE, null=True, related_name="entries")
    # Apps without migrations get their tables before apps with migrations.
    content_type = models.ForeignKey(ContentType, models.CASCADE, null=True, db_constraint=False)
    object_id = models.BigIntegerField(null=True)
    about = GenericForeignKey()


class Tag(models.Model):
    entries = models.ManyToManyField(Entry)


class Document(FencedModel):
    """Owns the column; its children have their own tables."""

    title = models.CharField(max_length=40, default="")


class Letter(Document):
    pages = models.IntegerField(default=0)


class Reminder(Letter):
    level = models.IntegerField(default=0)


class Contract(Document):
    """A child whose primary key is not its link to the parent."""

    number = models.BigAutoField(primary_key=True)
    document = models.OneToOneField(Document, models.CASCADE, parent_link=True)
    price = models.IntegerField(default=0)


class Amendment(Contract):
    reason = models.CharField(max_length=40, default="")


class Parcel(FencedModel):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    weight = models.IntegerField(default=0)


class Booking(FencedModel):
    pk = models.CompositePrimaryKey("tenant", "number")
    tenant = models.IntegerField()
    number = models.IntegerField()
    seats = models.IntegerField(default=0)


class Sealed(FencedModel):
    """The database itself refuses a lower fence."""

    text = models.CharField(max_length=40, default="")

    class Meta:
        constraints = (FenceNeverDecreases(name="sealed_fence_never_decreases"),)
