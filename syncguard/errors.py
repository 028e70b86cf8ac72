"""The errors of SyncGuard: one class, nine codes.

::

    Exception
    └── LockError          .code, .context
        └── LockLost       code "LockLost": the lock was held, and is not held any more

Contention is not here: a lock that somebody else holds is a result, not an error.
An error's text and repr never contain a raw key, a lock id or a password; those who need the
identifiers read ``.context``, which prints none of them either.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, get_args

ErrorCode = Literal[
    "ServiceUnavailable",
    "AuthFailed",
    "InvalidArgument",
    "RateLimited",
    "NetworkTimeout",
    "AcquisitionTimeout",
    "Aborted",
    "Internal",
    "LockLost",
]
"""The specification's eight codes, and ours for a lock that was lost while it was held."""

ERROR_CODES: Final[tuple[ErrorCode, ...]] = get_args(ErrorCode)

_DEFAULT_MESSAGES: Final[dict[str, str]] = {
    "ServiceUnavailable": "the lock service cannot be reached or refused to serve",
    "AuthFailed": "the lock service refused the credentials or the permission",
    "InvalidArgument": "an argument is not acceptable",
    "RateLimited": "the lock service or the connection pool is at its limit",
    "NetworkTimeout": "the lock service did not answer in time",
    "AcquisitionTimeout": "the lock could not be acquired in time",
    "Aborted": "the operation was aborted by its signal",
    "Internal": "an unexpected failure in the lock service",
    "LockLost": "the lock was lost while it was held",
}


@dataclass(frozen=True, slots=True)
class ErrorContext:
    """What an error was about. Holds raw identifiers, and shows none of them when printed."""

    key: str | None = field(default=None, repr=False)
    lock_id: str | None = field(default=None, repr=False)
    cause: BaseException | None = field(default=None, repr=False)


class LockError(Exception):
    """A lock operation failed: ``code`` says how, ``context`` says on what."""

    code: ErrorCode
    context: ErrorContext

    def __init__(
        self,
        code: ErrorCode,
        message: str | None = None,
        context: ErrorContext | None = None,
    ) -> None:
        if code not in ERROR_CODES:
            raise ValueError(f"not an error code of SyncGuard; the codes are {ERROR_CODES}")
        # Both as arguments: result stores rebuild an error as cls(*args).
        super().__init__(code, message or _DEFAULT_MESSAGES[code])
        self.code = code
        self.context = context or ErrorContext()

    @property
    def message(self) -> str:
        return str(self.args[-1])

    def __str__(self) -> str:
        return self.message

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.code!r}, {str(self)!r})"

    def __reduce__(self) -> tuple[object, ...]:
        # The context stays behind: a pickled error travels into result stores and logs, where
        # a raw key or a lock id has no business, and a cause may not even unpickle.
        return (type(self), (self.code, str(self)))


class LockLost(LockError):
    """The lock was held and is not held any more: stop touching what it protects."""

    def __init__(self, message: str | None = None, context: ErrorContext | None = None) -> None:
        super().__init__("LockLost", message, context)
        self.args = (self.message,)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self),))


def is_interrupt(error: BaseException) -> bool:
    """Whether this struck from outside, like Ctrl-C, a time limit, or the loss of another lock.

    What our own operations raise is a LockError, and never LockLost.
    """
    return not isinstance(error, LockError) or isinstance(error, LockLost)


def invalid_argument(message: str) -> LockError:
    """The error for bad input. The message must name the rule, never the offending value."""
    return LockError("InvalidArgument", message)
