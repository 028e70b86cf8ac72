"""A client of the RabbitMQ test, run as a program."""

from __future__ import annotations

import os
import uuid

import worker_app

queue = os.environ["WORKER_APP_QUEUE"]
name = uuid.uuid4().hex

assert worker_app.visiting.apply_async((name,), queue=queue).get(timeout=150)
first = worker_app.unique.apply_async((name,), queue=queue, countdown=8)
assert worker_app.unique.apply_async((name,), queue=queue).id == first.id
assert first.get(timeout=100) == "000000000000001"
step = worker_app.child.si(f"family:{name}").set(queue=queue)
chained = worker_app.parent.si(name, "nothing").set(queue=queue) | step
assert chained.delay().get(timeout=100) == "000000000000001"
