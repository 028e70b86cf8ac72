"""Errors: nine codes, a context that does not show itself, and texts that say what to do."""

from __future__ import annotations

import copy
import pickle

import pytest

from syncguard import ERROR_CODES, ErrorContext, LockError, LockLost

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


def test_an_unknown_code_cannot_be_made():
    with pytest.raises(ValueError, match="not an error code"):
        LockError("Oops")


def test_a_text_and_a_context_are_kept():
    cause = OSError("gone")
    error = LockError("Internal", "the text", ErrorContext("the key", "the id", cause))
    assert str(error) == "the text"
    assert (error.context.key, error.context.lock_id) == ("the key", "the id")
    assert error.context.cause is cause


def test_neither_the_error_nor_its_context_prints_what_it_was_about():
    error = LockError("Internal", context=ErrorContext("the key", "the id", OSError("the cause")))
    for shown in (repr(error), str(error), repr(error.context), str(error.context)):
        assert "the " not in shown.replace("the lock", "")


def test_the_repr_names_the_code_and_the_text():
    assert repr(LockError("Aborted", "stop")) == "LockError('Aborted', 'stop')"


def test_lock_lost_needs_no_arguments_and_is_a_lock_error():
    error = LockLost()
    assert isinstance(error, LockError)
    assert error.code == "LockLost"
    assert repr(error).startswith("LockLost(")


@pytest.mark.parametrize("travel", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy])  # noqa: S301
@pytest.mark.parametrize(
    "error", [LockError("RateLimited", "slow down"), LockLost("gone")], ids=repr
)
def test_errors_travel_between_processes(travel, error):
    arrived = travel(error)
    assert type(arrived) is type(error)
    assert (arrived.code, str(arrived)) == (error.code, str(error))


def test_the_context_stays_behind_when_an_error_travels():
    error = LockError("Internal", context=ErrorContext("key", "id", OSError()))
    assert pickle.loads(pickle.dumps(error)).context == ErrorContext()  # noqa: S301
