"""The errors of SyncGuard: one class for each code, all under ``LockError``.

::

    Exception
    └── LockError               .code, .context
        ├── AcquisitionTimeout  somebody else held the lock for as long as we were ready to wait
        ├── LockLost            the lock was held, and is not held any more
        ├── ServiceUnavailable  the lock's server cannot be reached, or does not serve
        ├── NetworkTimeout      the lock's server did not answer in time
        ├── RateLimited         the server or the connection pool is at its limit
        ├── AuthFailed          the server refused the credentials or the permission
        ├── InvalidArgument     an argument is not acceptable
        ├── Aborted             the operation was called off by its ``signal``
        └── Internal            the lock's server failed in an unexpected way

``LockError("Aborted")`` makes an ``Aborted``: who has only the code gets the right class too.
Contention of ``backend.acquire()`` is not here: that is a result. An error's text and repr never
contain a raw key, a lock id or a password; those who need the identifiers read ``.context``,
which prints none of them either.
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
"""The specification's eight codes, and ours for a lock that was lost while it was held."""

ERROR_CODES: Final[tuple[ErrorCode, ...]] = get_args(ErrorCode)


@dataclass(frozen=True, slots=True)
class ErrorContext:
    """What an error was about. Holds raw identifiers, and shows none of them when printed."""

    key: str | None = field(default=None, repr=False)
    lock_id: str | None = field(default=None, repr=False)
    cause: BaseException | None = field(default=None, repr=False)


class _ByCode(type):
    """Makes of ``LockError(code, ...)`` an instance of the class of that code."""

    if not TYPE_CHECKING:  # type checkers are to read the signatures of __init__

        def __call__(cls, *args: Any, **kwargs: Any) -> LockError:
            return (_of_code if cls is LockError else super().__call__)(*args, **kwargs)


class LockError(Exception, metaclass=_ByCode):
    """A lock operation failed: ``code`` says how, ``context`` says on what."""

    code: ErrorCode
    context: ErrorContext

    def __init__(
        self,
        code: ErrorCode,
        message: str | None = None,
        context: ErrorContext | None = None,
    ) -> None:
        # Both as arguments: result stores rebuild an error as cls(*args).
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
        # The context stays behind: a pickled error travels into result stores and logs, where
        # a raw key or a lock id has no business, and a cause may not even unpickle.
        return (type(self), (self.code, str(self)))


class _OneCode(LockError):
    """A class whose errors all have the same code, and are made without naming it."""

    default_message: ClassVar[str]

    def __init__(self, message: str | None = None, context: ErrorContext | None = None) -> None:
        super().__init__(type(self).code, message, context)
        self.args = self.args[1:]

    @property
    def message(self) -> str:
        return str(self.args[0])  # a subclass may put more behind it

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self),))


class AcquisitionTimeout(_OneCode):
    """Somebody else held the lock for as long as the caller was ready to wait."""

    code = "AcquisitionTimeout"
    default_message = "the lock could not be acquired in time"


class LockLost(_OneCode):
    """The lock was held and is not held any more: stop touching what it protects."""

    code = "LockLost"
    default_message = "the lock was lost while it was held"


class ServiceUnavailable(_OneCode):
    """The lock's server cannot be reached, or does not serve now. Trying again may help."""

    code = "ServiceUnavailable"
    default_message = "the lock service cannot be reached or refused to serve"


class NetworkTimeout(_OneCode):
    """The lock's server did not answer in time. Trying again may help."""

    code = "NetworkTimeout"
    default_message = "the lock service did not answer in time"


class RateLimited(_OneCode):
    """The lock's server or the client's connection pool is at its limit."""

    code = "RateLimited"
    default_message = "the lock service or the connection pool is at its limit"


class AuthFailed(_OneCode):
    """The lock's server refused the credentials, or the user lacks a permission."""

    code = "AuthFailed"
    default_message = "the lock service refused the credentials or the permission"


class InvalidArgument(_OneCode):
    """An argument is not acceptable. Raised before anything is sent."""

    code = "InvalidArgument"
    default_message = "an argument is not acceptable"


class Aborted(_OneCode):
    """The operation was called off by its ``signal``."""

    code = "Aborted"
    default_message = "the operation was aborted by its signal"


class Internal(_OneCode):
    """The lock's server failed in a way that nobody expects."""

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
    """The class of an error code. Raises ValueError if it is none."""
    try:
        return _CLASSES[code]
    except (KeyError, TypeError):
        raise ValueError(f"not an error code of SyncGuard; the codes are {ERROR_CODES}") from None


def _of_code(
    code: ErrorCode, message: str | None = None, context: ErrorContext | None = None
) -> LockError:
    return class_of(code)(message, context)


def is_interrupt(error: BaseException) -> bool:
    """Whether this struck from outside, like Ctrl-C, a time limit, or the loss of another lock.

    What our own operations raise is a LockError, and never LockLost.
    """
    return not isinstance(error, LockError) or isinstance(error, LockLost)


def invalid_argument(message: str) -> InvalidArgument:
    """The error for bad input. The message must name the rule, never the offending value."""
    return InvalidArgument(message)
