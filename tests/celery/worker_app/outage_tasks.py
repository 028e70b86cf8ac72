"""Tasks that meet an outage of the lock's Redis, with default options."""

from __future__ import annotations

from worker_app import app, note

from syncguard_celery import locked_task


@locked_task(app=app, key="outage:{name}:{number}")
def settling(name, number):
    note(name, "run", number=number)
    return number


@locked_task(app=app, key="outage:{name}:{number}", on_contention="skip", skip_result="skipped")
def settling_or_skipping(name, number):
    note(name, "run", number=number)
    return number


@locked_task(app=app, key="outage:{name}", on_unavailable="fail")
def giving_up(name):
    return name


@locked_task(app=app, key="outage:{name}", at="publish", pending_ttl_ms=60_000)
def queued_once(name):
    note(name, "run")
    return name
