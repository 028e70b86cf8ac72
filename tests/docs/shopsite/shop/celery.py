"""Celery without a broker: tasks run where they are called."""

from celery import Celery

app = Celery("shop")
app.conf.task_always_eager = True
app.conf.task_eager_propagates = True
