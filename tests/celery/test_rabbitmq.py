"""The same header on the other broker, where one can be found."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid

import pytest

URL = os.environ.get("SYNCGUARD_TEST_AMQP", "")


@pytest.mark.skipif(not URL, reason="no RabbitMQ: set SYNCGUARD_TEST_AMQP to its amqp:// URL")
def test_locks_fences_and_publish_time_locks_work_with_rabbitmq(workshop):
    # In processes of their own: the app of this one talks to Redis.
    queue = f"rabbit-{uuid.uuid4().hex}"
    environment = {**os.environ, "WORKSHOP_BROKER": URL, "WORKSHOP_QUEUE": queue}
    folder = os.path.dirname(workshop.__file__)
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "workshop", "worker", "-P", "solo", "-Q", queue],
        cwd=folder,
        env=environment,
    )
    try:
        subprocess.run(
            [sys.executable, "rabbit.py"], cwd=folder, env=environment, check=True, timeout=60
        )
    finally:
        worker.terminate()
        worker.wait(30)
