"""Errors: a class for each code, a context that is not printed, texts that help."""

from __future__ import annotations

import copy
import pickle

import pytest

import syncguard
from syncguard import ERROR_CODES, ErrorContext, LockError, LockLost, aio, errors

SPECIFIED = {
    "ServiceUnavailable",
    "AuthFailed",
    "InvalidArgument",
    "RateLimited",
    "NetworkTimeout",
    "AcquisitionTimeout",
    "Aborted",
    "Internal",
}


def test_the_codes_are_the_specified_ones_and_lock_lost():
    assert set(ERROR_CODES) == SPECIFIED | {"LockLost"}


@pytest.mark.parametrize("code", ERROR_CODES)
def test_an_error_has_its_code_and_a_text_even_if_none_was_given(code):
    error = LockError(code)
    assert error.code == code
    assert len(str(error)) > 10
    assert error.message == str(error)
    assert error.context == ErrorContext()


@pytest.mark.parametrize("code", ERROR_CODES)
def test_each_code_has_a_class_of_its_own_under_lock_error(code):
    kind = getattr(syncguard, code)
    assert kind is getattr(aio, code)
    assert code in syncguard.__all__
    assert code in aio.__all__
    others = [getattr(syncguard, other) for other in ERROR_CODES if other != code]
    assert issubclass(kind, LockError)
    assert not issubclass(kind, tuple(others))
    assert kind.code == code
    assert code in errors.__doc__


@pytest.mark.parametrize("code", ERROR_CODES)
def test_an_error_created_by_its_code_has_the_class_of_that_code(code):
    kind = getattr(syncguard, code)
    context = ErrorContext("the key")
    for error in (LockError(code, "text", context), LockError(code=code, message="text")):
        assert type(error) is kind
        assert str(error) == "text"
    assert LockError(code, "text", context).context is context
    assert LockError(code, context=context).context is context


@pytest.mark.parametrize("code", ERROR_CODES)
def test_the_class_of_a_code_needs_no_arguments_and_takes_a_text_and_a_context(code):
    kind = getattr(syncguard, code)
    context = ErrorContext("the key")
    assert str(kind()) == str(LockError(code))
    assert kind().code == code
    assert kind("text", context).context is context
    assert str(kind("text", context)) == "text"
    assert repr(kind("text")) == f"{code}('text')"


def test_an_error_is_caught_by_its_class_and_by_no_other():
    with pytest.raises(syncguard.AcquisitionTimeout):
        raise LockError("AcquisitionTimeout")
    assert not isinstance(LockError("AcquisitionTimeout"), syncguard.NetworkTimeout)


class UserError(LockError):
    """A subclass whose code is an argument."""


class UserTimeout(syncguard.AcquisitionTimeout):
    """A subclass of the class of a code."""


def test_subclasses_of_users_keep_their_class():
    error = UserError("Internal", "text")
    assert (type(error), error.code, str(error)) == (UserError, "Internal", "text")
    assert repr(error) == "UserError('Internal', 'text')"
    assert type(UserTimeout("text")) is UserTimeout
    assert UserTimeout().code == "AcquisitionTimeout"


def test_an_unknown_code_raises_value_error():
    with pytest.raises(ValueError, match="not an error code"):
        LockError("Oops")


def test_a_text_and_a_context_are_kept():
    cause = OSError("gone")
    error = LockError("Internal", "the text", ErrorContext("the key", "the id", cause))
    assert str(error) == "the text"
    assert (error.context.key, error.context.lock_id) == ("the key", "the id")
    assert error.context.cause is cause


def test_neither_the_error_nor_its_context_prints_identifiers():
    error = LockError("Internal", context=ErrorContext("the key", "the id", OSError("the cause")))
    for shown in (repr(error), str(error), repr(error.context), str(error.context)):
        assert "the " not in shown.replace("the lock", "")


def test_the_repr_names_the_code_and_the_text():
    assert repr(LockError("Aborted", "stop")) == "Aborted('stop')"


def test_lock_lost_needs_no_arguments_and_is_a_lock_error():
    error = LockLost()
    assert isinstance(error, LockError)
    assert error.code == "LockLost"
    assert repr(error).startswith("LockLost(")


def through_a_result_store(error: LockError) -> LockError:
    """As Celery does with JSON: find the class by module and name, call it with ``args``."""
    kind, args = type(error), list(error.args)
    return getattr(__import__(kind.__module__, fromlist=[""]), kind.__name__)(*args)


@pytest.mark.parametrize(
    "travel",
    [
        lambda error: pickle.loads(pickle.dumps(error)),  # noqa: S301
        copy.copy,
        copy.deepcopy,
        through_a_result_store,
    ],
    ids=["pickle", "copy", "deepcopy", "result store"],
)
@pytest.mark.parametrize("code", ERROR_CODES)
def test_errors_can_be_sent_between_processes(travel, code):
    for error in (LockError(code, "the text"), getattr(syncguard, code)("the text")):
        arrived = travel(error)
        assert type(arrived) is getattr(syncguard, code)
        assert (arrived.code, str(arrived)) == (code, "the text")


@pytest.mark.parametrize("error", [UserError("Internal", "x"), UserTimeout("x")], ids=repr)
def test_errors_of_users_can_be_pickled_too(error):
    arrived = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert type(arrived) is type(error)
    assert (arrived.code, str(arrived)) == (error.code, "x")


def test_a_pickled_error_has_no_context():
    error = LockError("Internal", context=ErrorContext("key", "id", OSError()))
    assert pickle.loads(pickle.dumps(error)).context == ErrorContext()  # noqa: S301
