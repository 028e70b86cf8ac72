"""What the page shows: a scene, its steps, and the events of its lock.

Times are milliseconds since the epoch, as in JavaScript.
"""

from __future__ import annotations

import time

from django.db import models


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Scene(models.Model):
    kind = models.CharField(max_length=20)
    key = models.CharField(max_length=100)
    started_ms = models.BigIntegerField(default=now_ms)
    ended_ms = models.BigIntegerField(null=True)
    ok = models.BooleanField(null=True)

    def __str__(self) -> str:
        return f"{self.kind} of {self.key}"


class Step(models.Model):
    """A sentence of the scene. ``ok`` is None for a step that checks nothing."""

    scene = models.ForeignKey(Scene, on_delete=models.CASCADE, related_name="steps")
    text = models.CharField(max_length=300)
    ok = models.BooleanField(null=True)
    at_ms = models.BigIntegerField(default=now_ms)

    class Meta:
        ordering = ("pk",)

    def __str__(self) -> str:
        return self.text


class Event(models.Model):
    """Something that happened to the lock of the scene."""

    scene = models.ForeignKey(Scene, on_delete=models.CASCADE, related_name="events")
    kind = models.CharField(max_length=20)
    fence = models.CharField(max_length=15, blank=True)
    pid = models.PositiveIntegerField()
    task_id = models.CharField(max_length=50, blank=True)
    detail = models.CharField(max_length=200, blank=True)
    at_ms = models.BigIntegerField(default=now_ms)
    until_ms = models.BigIntegerField(null=True)

    class Meta:
        ordering = ("at_ms", "pk")

    def __str__(self) -> str:
        return f"{self.kind} {self.fence}".rstrip()
