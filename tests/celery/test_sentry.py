"""What Sentry shows for SyncGuard's errors: the real client, with a transport that keeps events."""

from __future__ import annotations

import pytest

from syncguard_celery import LockContended, locked_task

sentry_sdk = pytest.importorskip("sentry_sdk")


def test_sentry_shows_the_text_of_lock_contended(app, syncguard_backend):
    @locked_task(app=app, name="settle", key="invoice:secret", on_contention="fail")
    def settle(): ...

    sent = []
    client = sentry_sdk.Client(
        dsn="http://public@127.0.0.1:1/1",
        before_send=lambda event, _hint: sent.append(event),  # returns None: nothing is sent
        default_integrations=False,
        include_local_variables=False,
        include_source_context=False,
    )
    try:
        with syncguard_backend.acquire("invoice:secret", 20_000), sentry_sdk.new_scope() as scope:
            scope.set_client(client)
            with pytest.raises(LockContended) as caught:
                settle()
            scope.capture_exception(caught.value)
    finally:
        client.close(timeout=0)
    (event,) = sent
    shown = event["exception"]["values"][-1]
    assert shown["type"] == "LockContended"
    assert shown["value"].startswith("the lock is held by somebody else, for ")
    assert "secret" not in str(event)
