"""Errors: by SQLSTATE, bounded retries, and texts without secrets."""

from __future__ import annotations

import pytest

from syncguard import AuthFailed, InvalidArgument, LockError, ServiceUnavailable
from syncguard.postgres import DEFAULT_LOCKS_TABLE, PostgresBackend
from syncguard.postgres._transport.runner_steps import CONFLICT_RETRIES, DUPLICATE_RETRIES
from syncguard.postgres.error_codes import connection_fault, error_code

LONG_MS = 60_000
MANY = 1_000

BY_STATE = {
    "08006": "ServiceUnavailable",
    "53100": "ServiceUnavailable",
    "53300": "ServiceUnavailable",
    "57P01": "ServiceUnavailable",
    "57P03": "ServiceUnavailable",
    "25006": "ServiceUnavailable",
    "40001": "ServiceUnavailable",
    "40P01": "ServiceUnavailable",
    "28000": "AuthFailed",
    "42501": "AuthFailed",
    "22003": "InvalidArgument",
    "42703": "InvalidArgument",
    "23505": "Internal",
    "3F000": "InvalidArgument",
    "55P03": "NetworkTimeout",
    "57014": "NetworkTimeout",
    "XX000": "Internal",
    "P0001": "Internal",
}


@pytest.fixture
def failing(sql):
    """Writes to the locks fail with this SQLSTATE, so often."""

    def fail(state, times=MANY):
        sql("CREATE SEQUENCE failures")  # a sequence is not rolled back
        sql(
            f"""CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                IF nextval('failures') <= {times} THEN
                    RAISE EXCEPTION 'a failure' USING ERRCODE = '{state}', DETAIL = NEW.user_key;
                END IF;
                RETURN NEW;
            END $$"""
        )
        sql(
            f"CREATE TRIGGER fail BEFORE INSERT OR UPDATE ON {DEFAULT_LOCKS_TABLE}"
            " FOR EACH ROW EXECUTE FUNCTION fail()"
        )
        return lambda: sql("SELECT last_value FROM failures")[0][0]

    yield fail
    sql("DROP FUNCTION IF EXISTS fail CASCADE")
    sql("DROP SEQUENCE IF EXISTS failures")


@pytest.mark.parametrize(("state", "code"), BY_STATE.items())
def test_the_sqlstate_decides(blocking, failing, state, code):
    failing(state)
    with pytest.raises(LockError) as caught:
        blocking.acquire("secret-key", LONG_MS)
    assert caught.value.code == code
    assert state in str(caught.value)


@pytest.mark.parametrize("state", ["40001", "40P01"])
def test_a_conflict_is_retried_a_bounded_number_of_times(backend, failing, state):
    failing(state, times=CONFLICT_RETRIES)
    assert backend.acquire("k", LONG_MS).ok


def test_a_conflict_that_does_not_end_is_unavailable(backend, failing):
    attempts = failing("40001")
    with pytest.raises(ServiceUnavailable):
        backend.acquire("k", LONG_MS)
    # The undo of the doubtful acquire may have begun.
    assert CONFLICT_RETRIES + 1 <= attempts() < MANY


def test_a_duplicate_key_is_retried_a_bounded_number_of_times(backend, failing):
    failing("23505", times=DUPLICATE_RETRIES)
    assert backend.acquire("k", LONG_MS).ok


def test_a_failed_transaction_is_rolled_back_before_the_connection_is_used_again(backend, failing):
    failing("P0001", times=1)
    with pytest.raises(LockError):
        backend.acquire("k", LONG_MS)
    assert backend.acquire("k", LONG_MS).ok
    assert backend.is_locked("k")


@pytest.mark.parametrize("way", ["direct", "pgbouncer"])
def test_a_failure_at_the_commit_is_an_error_and_the_connection_goes_on(
    request, syncguard_postgres, backend_at, sql, way
):
    """As that of a full NOTIFY queue: the statement has succeeded, and its rows have arrived."""
    url = syncguard_postgres.url if way == "direct" else request.getfixturevalue("pgbouncer").url
    sql(
        """CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF NEW.user_key = 'fails' THEN RAISE EXCEPTION 'at the commit'; END IF;
            RETURN NULL;
        END $$"""
    )
    try:
        sql(
            f"CREATE CONSTRAINT TRIGGER fail AFTER INSERT OR UPDATE ON {DEFAULT_LOCKS_TABLE}"
            " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fail()"
        )
        backend = backend_at(url, max_connections=1)
        for _ in range(3):
            with pytest.raises(LockError, match="P0001"):
                backend.acquire("fails", LONG_MS)
            assert not backend.is_locked("fails")
            held = backend.acquire("works", LONG_MS)
            assert held.ok
            assert held.release().ok
    finally:
        sql("DROP FUNCTION fail CASCADE")


def test_a_role_without_permission_fails_to_authenticate(backend_at, syncguard_postgres, sql):
    sql("CREATE ROLE nobody LOGIN")
    try:
        backend = backend_at(syncguard_postgres.url, user="nobody")
        for operation in (lambda: backend.acquire("k", LONG_MS), lambda: backend.is_locked("k")):
            with pytest.raises(AuthFailed, match="42501"):
                operation()
    finally:
        sql("DROP ROLE nobody")


def test_a_refused_login_fails_to_authenticate(backend_at, syncguard_postgres):
    backend = backend_at(syncguard_postgres.url, user="unknown", password="hunter2")
    with pytest.raises(AuthFailed) as caught:
        backend.is_locked("k")
    assert "hunter2" not in repr(caught.value) + str(caught.value.context.cause)


def test_a_server_that_cannot_be_reached_is_unavailable_and_named(backend_at):
    backend = backend_at("postgresql://someone:hunter2@127.0.0.1:1/shop")
    with pytest.raises(ServiceUnavailable, match=r"127\.0\.0\.1:1/shop") as caught:
        backend.acquire("k", LONG_MS)
    assert "hunter2" not in str(caught.value) + str(caught.value.context.cause)


def test_neither_an_error_nor_its_cause_contains_the_key(blocking, failing):
    failing("P0001")
    with pytest.raises(LockError) as caught:
        blocking.acquire("secret-key", LONG_MS)
    cause = caught.value.context.cause
    assert "secret-key" not in str(caught.value) + repr(caught.value) + str(cause) + repr(cause)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "redis://127.0.0.1",
        "postgresql://[hunter2",
        None,
        7,
        "postgresql://a:b:hunter2/x",
        "postgresql://u:hunter2/x@host/db",
        "postgresql://u:12/hunter2@host/db",
        "postgresql://u:p@hunter2@host/db",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_being_quoted(url):
    with pytest.raises(InvalidArgument) as caught:
        PostgresBackend.from_url(url)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_no_repr_contains_a_password():
    backend = PostgresBackend.from_url("postgresql://u:hunter2@127.0.0.1/x", password="hunter3")
    assert "hunter" not in repr(backend) + repr(backend._address)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('FATAL:  password authentication failed for user "shop"', "AuthFailed"),
        ("fe_sendauth: no password supplied", "AuthFailed"),
        ("FATAL:  remaining connection slots are reserved for superusers", "ServiceUnavailable"),
        ('FATAL:  too many connections for role "shop"', "ServiceUnavailable"),
        ('FATAL:  database "shop" does not exist', "ServiceUnavailable"),
        ("server closed the connection unexpectedly", "ServiceUnavailable"),
        ("connection to server failed: session is read-only", "ServiceUnavailable"),
        ("connection to server failed: server is in hot standby mode", "ServiceUnavailable"),
    ],
)
def test_a_failure_after_the_password_was_accepted_is_no_refused_login(text, code):
    """libpq reports no SQLSTATE here, only that the server asked for a password."""
    assert error_code(connection_fault(text, used_password=True)) == code


def test_a_failed_transaction_does_not_end_prepared_statements(blocking, failing):
    """The server skips what follows the failure, also the PREPARE of the COMMIT."""
    failing("P0001", times=1)
    with pytest.raises(LockError):
        blocking.acquire("k", LONG_MS)
    assert blocking.acquire("k", LONG_MS).ok
    connection = blocking._runner.idle.take()
    assert connection.is_direct
    blocking._runner.idle.keep(connection)
