"""Maps a failure of Redis to one of our error codes: by exception class, then by Redis's own code.

Not by searching messages, because messages change. The one exception is a permission that is
missing inside a script: Redis has no code for it. The order matters, because redis-py's
AuthenticationError is a ConnectionError.
"""

from __future__ import annotations

import asyncio
import re
from typing import Final

import redis.exceptions as redis_errors

from syncguard.errors import ErrorCode, ErrorContext, LockError

FAULTS: Final = (
    redis_errors.RedisError,
    redis_errors.RedisClusterException,
    redis_errors.ChildDeadlockedError,
    asyncio.TimeoutError,
    OSError,
)
"""The exceptions of Redis, its client and the network. All others come from outside, for example
from a time limit that ended during a call, and must reach the caller unchanged."""

REDIRECTIONS: Final = (
    redis_errors.AskError,
    redis_errors.MovedError,
    redis_errors.TryAgainError,
    redis_errors.ClusterDownError,
)
"""This node of a cluster does not execute the request now: another one does, or will."""

_BY_CLASS: Final[tuple[tuple[tuple[type[BaseException], ...], ErrorCode], ...]] = (
    (
        (
            redis_errors.AuthenticationError,
            redis_errors.AuthorizationError,
            redis_errors.AuthenticationWrongNumberOfArgsError,
            redis_errors.NoPermissionError,
        ),
        "AuthFailed",
    ),
    ((redis_errors.TimeoutError, TimeoutError, asyncio.TimeoutError), "NetworkTimeout"),
    ((redis_errors.MaxConnectionsError, redis_errors.OutOfMemoryError), "RateLimited"),
    (
        (
            redis_errors.ConnectionError,
            redis_errors.ReadOnlyError,
            redis_errors.ClusterError,
            redis_errors.RedisClusterException,
            *REDIRECTIONS,
            OSError,
        ),
        "ServiceUnavailable",
    ),
    ((redis_errors.DataError,), "InvalidArgument"),
)

_BY_REPLY: Final[dict[str, ErrorCode]] = {
    "NOAUTH": "AuthFailed",
    "WRONGPASS": "AuthFailed",
    "NOPERM": "AuthFailed",
    "WRONGTYPE": "InvalidArgument",
    "SYNTAX": "InvalidArgument",
    "INVALID": "InvalidArgument",
    "OOM": "RateLimited",
    "LOADING": "ServiceUnavailable",
    "READONLY": "ServiceUnavailable",
    "MASTERDOWN": "ServiceUnavailable",
    "CLUSTERDOWN": "ServiceUnavailable",
    "TRYAGAIN": "ServiceUnavailable",
    "MOVED": "ServiceUnavailable",
    "ASK": "ServiceUnavailable",
    "UNBLOCKED": "ServiceUnavailable",  # the server became a replica during a WAIT
    "MISCONF": "ServiceUnavailable",
    "NOREPLICAS": "ServiceUnavailable",
    "BUSY": "ServiceUnavailable",
}

# Redis 6.2 wraps an error inside a script: "Error running script (...): @user_script:9: CODE ..."
_INSIDE_SCRIPT: Final = re.compile(r"Error running script .*?@user_script: ?\d+: -?([A-Z]+)\b")
_FIRST_WORD: Final = re.compile(r"-?([A-Z]+)\b")

# Compared from the first character, so that no other text matches. Redis 7.2 and newer have
# the first text, 7.0 and 6.2 the second. The code of both is ERR, which redis-py removes.
_NO_PERMISSION_INSIDE_SCRIPT: Final = re.compile(
    r"(?:Error running script .*?@user_script: ?\d+: (?:@user_script: ?\d+: )?)?"
    r"(?:ERR )?(?:ACL failure in script: |The user executing the script can't (?:run|access) )"
)

_NOT_SERVING: Final[dict[str, type[redis_errors.RedisError]]] = {
    "READONLY": redis_errors.ReadOnlyError,
    "MASTERDOWN": redis_errors.MasterDownError,
    "LOADING": redis_errors.BusyLoadingError,
}

NOT_SERVING: Final = tuple(_NOT_SERVING.values())
"""The server cannot execute the request, and has not executed it. After a failover, a new
connection to the same address reaches the new primary; an old connection never does."""


_NO_CONNECTION_LEFT: Final = ("max number of clients reached", "Too many connections")
"""The server's words for a new connection above its ``maxclients``, and those of redis-py 5 for one
above the limit of the pool. Newer ones raise MaxConnectionsError."""


def error_code(error: BaseException) -> ErrorCode:
    """Return the code for an error of the client library or of the server."""
    if isinstance(error, redis_errors.ConnectionError) and str(error) in _NO_CONNECTION_LEFT:
        return "RateLimited"
    for classes, code in _BY_CLASS:
        if isinstance(error, classes):
            return code
    return _BY_REPLY.get(_reply_code(error), "Internal")


def not_serving(error: BaseException) -> redis_errors.RedisError | None:
    """Return the error as one of the ``NOT_SERVING`` classes, or None if it is another error.

    ``retry_on_error`` compares these classes, and redis-py does not use them for an error that
    Redis 6.2 wraps inside a script.
    """
    if isinstance(error, NOT_SERVING):
        return error
    kind = _NOT_SERVING.get(_reply_code(error))
    return None if kind is None else kind(str(error))


def is_redirection(error: BaseException) -> bool:
    """Whether this is one of ``REDIRECTIONS``, also as an error without their classes."""
    codes = ("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN")
    return isinstance(error, REDIRECTIONS) or _reply_code(error) in codes


def is_moving(error: BaseException) -> bool:
    """Whether the request needs names of a slot that is being moved to another node now."""
    if isinstance(error, redis_errors.MovedError):  # which is an AskError too
        return False
    classes = redis_errors.AskError, redis_errors.TryAgainError
    return isinstance(error, classes) or _reply_code(error) in ("ASK", "TRYAGAIN")


def _reply_code(error: BaseException) -> str:
    if not isinstance(error, redis_errors.ResponseError):
        return ""
    text = str(error)
    if _NO_PERMISSION_INSIDE_SCRIPT.match(text):
        return "NOPERM"
    match = _INSIDE_SCRIPT.match(text) or _FIRST_WORD.match(text)
    return match[1] if match else ""


def lock_error(
    error: Exception, *, server: str = "", key: str | None = None, lock_id: str | None = None
) -> LockError:
    """Return the failure as a LockError. Its text names the kind of failure and the server (the
    text of ``connections.describe_server``), never the key, the lock id or a password."""
    code = error_code(error)
    context = ErrorContext(key=key, lock_id=lock_id, cause=error)
    redis = f"Redis at {server}," if server else "Redis"
    return LockError(code, f"{redis} {_TEXT[code]} ({type(error).__name__})", context)


_TEXT: Final[dict[ErrorCode, str]] = {
    "AuthFailed": "rejected the credentials, or the user lacks a permission",
    "NetworkTimeout": "did not answer in time; the operation may or may not have been executed",
    "RateLimited": "or its connection pool is at its limit",
    "ServiceUnavailable": "cannot be reached, or cannot execute requests now",
    "InvalidArgument": "rejected the request; another application may be using this key_prefix",
    "Internal": "failed unexpectedly",
}
