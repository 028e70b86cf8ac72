"""Maps a failure of PostgreSQL to one of our error codes, by its SQLSTATE.

Never by the text of a statement's error, because texts are translated. The exception is a refused
login: libpq does not report the SQLSTATE of a failed connection.
"""

from __future__ import annotations

from typing import Final

import psycopg
from psycopg import errors as psycopg_errors
from psycopg import pq

from syncguard.errors import ErrorCode, ErrorContext, LockError

FAULTS: Final = (psycopg.Error, OSError)
"""The exceptions of PostgreSQL, its driver and the network."""

_BY_STATE: Final[dict[str, ErrorCode]] = {
    "25006": "ServiceUnavailable",  # read-only: this server is a standby now
    "42501": "AuthFailed",
    "3F000": "InvalidArgument",  # no such schema
    "55P03": "NetworkTimeout",  # lock_timeout
    "57014": "NetworkTimeout",  # statement_timeout, or cancelled by an administrator
}
_BY_CLASS: Final[dict[str, ErrorCode]] = {
    "08": "ServiceUnavailable",
    "22": "InvalidArgument",
    "28": "AuthFailed",
    "40": "ServiceUnavailable",
    "42": "InvalidArgument",
    "53": "ServiceUnavailable",
    "57": "ServiceUnavailable",
}
RECONNECT: Final = frozenset({"25006", "57P01", "57P02", "57P03", "57P05"})
"""This connection cannot be used again; a new one may reach a server that works."""

FORGOTTEN: Final = frozenset({"26000", "0A000"})
"""The server does not have a prepared statement any more, or its plan is out of date."""

_LOGIN_REFUSED: Final = (
    "authentication failed",
    "no pg_hba.conf entry",
    "is not permitted to log in",
    "permission denied for database",
    "no such user",
)
_LOGIN_ACCEPTED: Final = (
    "too many connections",
    "connection slots are reserved",
    "does not exist",
    "not currently accepting connections",
    "closed the connection",
    "session is read-only",
    "hot standby mode",
)
"""What a server says after it accepted the password, or a connection that broke then, or a server
that is not the wanted one (``target_session_attrs``)."""


class LoginRefusedError(psycopg.OperationalError):
    """The server refused the login."""


def fault_of(result: pq.abc.PGresult) -> psycopg.Error:
    """The error of a failed statement, with its first line only.

    The other lines (DETAIL, CONTEXT) can contain a key or a lock id.
    """
    state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode("ascii", "replace")
    message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"no message"
    try:
        kind = psycopg_errors.lookup(state)
    except KeyError:
        kind = psycopg_errors.get_base_exception(state)
    error = kind(message.decode("utf-8", "replace"))
    error.sqlstate = state or None
    return error


def connection_fault(message: str, *, used_password: bool) -> psycopg.OperationalError:
    """The error of a connection that could not be opened."""
    role_is_missing = 'role "' in message and "does not exist" in message
    refused = role_is_missing or any(text in message for text in _LOGIN_REFUSED)
    if used_password and not refused:
        # Another text, or another language: most likely about the password.
        refused = not any(text in message for text in _LOGIN_ACCEPTED)
    return (LoginRefusedError if refused else psycopg.OperationalError)(message.strip())


def error_code(error: BaseException) -> ErrorCode:
    """Return the code for an error of the driver or of the server."""
    if isinstance(error, LoginRefusedError):
        return "AuthFailed"
    if isinstance(error, TimeoutError):
        return "NetworkTimeout"
    state = sqlstate_of(error)
    if state:
        return _BY_STATE.get(state) or _BY_CLASS.get(state[:2], "Internal")
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | OSError):
        return "ServiceUnavailable"
    return "Internal"


def sqlstate_of(error: BaseException) -> str:
    return (error.sqlstate or "") if isinstance(error, psycopg.Error) else ""


def lock_error(
    error: Exception, *, server: str = "", key: str | None = None, lock_id: str | None = None
) -> LockError:
    """Return the failure as a LockError. Its text names the kind of failure and the server, never
    the key, the lock id or a password."""
    code = error_code(error)
    context = ErrorContext(key=key, lock_id=lock_id, cause=error)
    where = f"PostgreSQL at {server}," if server else "PostgreSQL"
    state = sqlstate_of(error)
    text = _TEXT_BY_STATE.get(state, _TEXT[code])
    detail = f"{type(error).__name__}, {state}" if state else type(error).__name__
    return LockError(code, f"{where} {text} ({detail})", context)


_MISSING_TEXT: Final = (
    "does not have the tables or functions of SyncGuard, or not those of this version: run the"
    " migrations, or call setup()"
)
_TEXT_BY_STATE: Final = {
    "42P01": _MISSING_TEXT,  # a table
    "42883": _MISSING_TEXT,  # a function
    "3F000": "does not have the schema of the tables: create it, then run the migrations, or call"
    " setup()",
}
_TEXT: Final[dict[ErrorCode, str]] = {
    "AuthFailed": "rejected the credentials, or the user lacks a permission",
    "NetworkTimeout": "did not answer in time; the operation may or may not have been executed",
    "ServiceUnavailable": "cannot be reached, or cannot execute requests now",
    "InvalidArgument": "rejected the request",
    "Internal": "failed unexpectedly",
}
