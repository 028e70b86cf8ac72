"""The errors of SyncGuard: one class for each code, all under ``LockError``.

::

    Exception
    └── LockError               .code, .context
        ├── AcquisitionTimeout  somebody else held the lock until the wait timed out
        ├── LockLost            the lock was held, and is not held any more
        ├── ServiceUnavailable  the lock's server cannot be reached, or refuses requests
        ├── NetworkTimeout      the lock's server did not answer in time
        ├── RateLimited         the server or the connection pool is at its limit
        ├── AuthFailed          the server rejected the credentials, or a permission is missing
        ├── InvalidArgument     an argument is not valid
        ├── Aborted             the ``signal`` of the operation was set
        └── Internal            the lock's server failed in an unexpected way

``LockError("Aborted")`` creates an ``Aborted``: the code selects the class. If somebody else holds
the lock, ``backend.acquire()`` returns a result and raises nothing. An error's text and repr never
contain a raw key, a lock id or a password. The identifiers are attributes of ``.context``, whose
repr does not contain them either.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, get_args

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
"""The eight codes of the specification, and ``LockLost``, which SyncGuard adds."""

ERROR_CODES: Final[tuple[ErrorCode, ...]] = get_args(ErrorCode)


@dataclass(frozen=True, slots=True)
class ErrorContext:
    """The key, lock id and cause of an error. The repr contains none of them."""

    key: str | None = field(default=None, repr=False)
    lock_id: str | None = field(default=None, repr=False)
    cause: BaseException | None = field(default=None, repr=False)


class _ByCode(type):
    """``LockError(code, ...)`` creates an instance of the class of that code."""

    if not TYPE_CHECKING:  # so that type checkers read the signatures of __init__

        def __call__(cls, *args: Any, **kwargs: Any) -> LockError:
            return (_of_code if cls is LockError else super().__call__)(*args, **kwargs)


class LockError(Exception, metaclass=_ByCode):
    """A lock operation failed: ``code`` is the kind of failure, ``context`` the key and lock id."""

    code: ErrorCode
    context: ErrorContext

    def __init__(
        self,
        code: ErrorCode,
        message: str | None = None,
        context: ErrorContext | None = None,
    ) -> None:
        # Both are in args: result stores recreate an error as cls(*args).
        super().__init__(code, message or class_of(code).default_message)
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
        # Without the context: a pickled error is stored in result stores and logs, which must
        # not contain a raw key or a lock id. And a cause may be impossible to unpickle.
        return (type(self), (self.code, str(self)))


class _OneCode(LockError):
    """Base of the classes with a fixed code: the constructor takes no code."""

    default_message: ClassVar[str]

    def __init__(self, message: str | None = None, context: ErrorContext | None = None) -> None:
        super().__init__(type(self).code, message, context)
        self.args = self.args[1:]

    @property
    def message(self) -> str:
        return str(self.args[0])  # a subclass may add more arguments

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self),))


class AcquisitionTimeout(_OneCode):
    """Somebody else held the lock until the wait timed out."""

    code = "AcquisitionTimeout"
    default_message = "the lock could not be acquired in time"


class LockLost(_OneCode):
    """The lock was held and is not held any more: stop touching what it protects."""

    code = "LockLost"
    default_message = "the lock was lost while it was held"


class ServiceUnavailable(_OneCode):
    """The lock's server cannot be reached, or refuses requests now. Retrying may help."""

    code = "ServiceUnavailable"
    default_message = "the lock service cannot be reached or refused the request"


class NetworkTimeout(_OneCode):
    """The lock's server did not answer in time. Retrying may help."""

    code = "NetworkTimeout"
    default_message = "the lock service did not answer in time"


class RateLimited(_OneCode):
    """The lock's server or the client's connection pool is at its limit."""

    code = "RateLimited"
    default_message = "the lock service or the connection pool is at its limit"


class AuthFailed(_OneCode):
    """The lock's server rejected the credentials, or the user lacks a permission."""

    code = "AuthFailed"
    default_message = "the lock service rejected the credentials, or the user lacks a permission"


class InvalidArgument(_OneCode):
    """An argument is not valid. Raised before any request is sent."""

    code = "InvalidArgument"
    default_message = "an argument is not valid"


class Aborted(_OneCode):
    """The ``signal`` of the operation was set, so the operation stopped."""

    code = "Aborted"
    default_message = "the operation was aborted because its signal was set"


class Internal(_OneCode):
    """The lock's server failed in an unexpected way."""

    code = "Internal"
    default_message = "an unexpected failure in the lock service"


_CLASSES: Final[dict[str, type[_OneCode]]] = {
    kind.code: kind
    for kind in (
        AcquisitionTimeout,
        LockLost,
        ServiceUnavailable,
        NetworkTimeout,
        RateLimited,
        AuthFailed,
        InvalidArgument,
        Aborted,
        Internal,
    )
}


def class_of(code: ErrorCode) -> type[_OneCode]:
    """The class of an error code. Raises ValueError if there is no such code."""
    try:
        return _CLASSES[code]
    except (KeyError, TypeError):
        raise ValueError(f"not an error code of SyncGuard; the codes are {ERROR_CODES}") from None


def _of_code(
    code: ErrorCode, message: str | None = None, context: ErrorContext | None = None
) -> LockError:
    return class_of(code)(message, context)


def is_interrupt(error: BaseException) -> bool:
    """Whether an exception came from outside: Ctrl-C, a time limit, or the loss of another lock.

    SyncGuard's own operations raise a LockError, but never LockLost.
    """
    return not isinstance(error, LockError) or isinstance(error, LockLost)


def invalid_argument(message: str) -> InvalidArgument:
    """The error for invalid input. The message must state the rule and never quote the value."""
    return InvalidArgument(message)
