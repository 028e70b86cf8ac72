"""Bad input is refused before anything is sent: the server counts no command, not even AUTH."""

from __future__ import annotations

import asyncio
import threading

import pytest

from syncguard import (
    Acquisition,
    LockError,
    aio,
    generate_lock_id,
    get_by_id,
    get_by_key,
    lock,
    owns,
)
from syncguard.redis import AsyncRedisBackend, RedisBackend
from syncguard.testing.conformance import check_invalid_arguments as bad

RESERVED_KEYS = {
    "fence's": "fence:x",
    "index's": "id:x",
    "a real counter": "fence:syncguard:k",
    "the list": "id::live",
    "an index": f"id:{generate_lock_id()}",
}
BAD_SIGNALS = {"object": object(), "function": lambda: True, "text": "stop", "False": False}
TAKES_SIGNAL = {
    "acquire": lambda b, s: b.acquire("k", signal=s),
    "release": lambda b, s: b.release(generate_lock_id(), signal=s),
    "extend": lambda b, s: b.extend(generate_lock_id(), signal=s),
    "adopt": lambda b, s: b.adopt(generate_lock_id(), signal=s),
    "is_locked": lambda b, s: b.is_locked("k", signal=s),
    "lookup": lambda b, s: b.lookup(key="k", signal=s),
}
LOOKUPS = {
    "neither": {},
    "both": {"key": "k", "lock_id": generate_lock_id()},
    "both, one bad": {"key": "k", "lock_id": ""},
    "neither, spelled out": {"key": None, "lock_id": None},
}
MARKS = {"key_hash": "0" * 24, "fence": "0" * 15, "lock_id_hash": "0" * 24}


def table(*groups):
    """Combine every bad value with every operation that takes it."""
    for operations, values in groups:
        for name, operation in operations.items():
            for how, value in values.items():
                yield pytest.param(operation, value, id=f"{name}: {how}")


EVERYTHING = list(
    table(
        (bad.TAKES_KEY, {**bad.BAD_KEYS, **RESERVED_KEYS}),
        (bad.TAKES_LOCK_ID, bad.BAD_LOCK_IDS),
        (bad.TAKES_TTL, bad.BAD_TTLS),
        (bad.TAKES_HOLDER, bad.BAD_HOLDERS),
        (bad.TAKES_COUNT, bad.BAD_COUNTS),
        (TAKES_SIGNAL, BAD_SIGNALS),
        ({"lookup": lambda b, a: b.lookup(**a)}, LOOKUPS),
        (
            {
                f"force_release without {m}": lambda b, v, m=m: b.force_release(**MARKS | {m: v})
                for m in MARKS
            },
            {"None": None, "empty": "", "bytes": b"x", "number": 1},
        ),
    )
)


@pytest.fixture
def untouched(syncguard_redis):
    """Fails the test if any command reaches the server."""
    before = syncguard_redis.commands_processed()
    yield
    assert syncguard_redis.commands_processed() == before


def refused(operation, *arguments):
    with pytest.raises(LockError) as caught:
        operation(*arguments)
    assert caught.value.code == "InvalidArgument"
    assert caught.value.__cause__ is None


@pytest.mark.usefixtures("untouched")
def test_input_that_the_backend_refuses_is_not_sent(backend):
    for case in EVERYTHING:
        operation, value = case.values
        try:
            refused(operation, backend, value)
        except BaseException as error:
            raise AssertionError(case.id) from error


@pytest.mark.usefixtures("untouched")
def test_an_operation_whose_signal_is_set_sends_nothing(backend):
    signal = threading.Event()
    signal.set()
    for operation in TAKES_SIGNAL.values():
        with pytest.raises(LockError) as caught:
            operation(backend, signal)
        assert caught.value.code == "Aborted"


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("helper", [get_by_key, get_by_id, owns])
def test_input_that_a_helper_refuses_is_not_sent(backend, helper):
    for value in (None, 1, "", "k" * 513):
        refused(helper, backend, value)


BAD_PREFIXES = [None, 1, b"app", "fence", "id", "app:fence", "id:x", "a\ud800", "p" * 960]


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("prefix", BAD_PREFIXES, ids=lambda p: repr(p)[:20])
def test_a_bad_prefix_is_refused_when_the_backend_is_made(make_backend, prefix):
    refused(lambda: make_backend(key_prefix=prefix))


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(
    "option",
    [
        {"cleanup_in_is_locked": "yes"},
        {"on_release_error": "call me"},
        {"dispose_timeout_ms": 0},
        {"dispose_timeout_ms": 1.5},
        {"hash_secret": ""},
        {"fence_floor": "tai"},
    ],
    ids=repr,
)
def test_a_bad_option_is_refused_when_the_backend_is_made(make_backend, option):
    refused(lambda: make_backend(**option))


# -- lock() ---------------------------------------------------------------------------------------

LOCK_CASES = [
    *[{"key": key} for key in [*bad.BAD_KEYS.values(), *RESERVED_KEYS.values()]],
    *[{"ttl_ms": ttl_ms} for ttl_ms in bad.BAD_TTLS.values()],
    *[{"holder": holder} for holder in bad.BAD_HOLDERS.values()],
    *[{"signal": signal} for signal in BAD_SIGNALS.values()],
    {"acquisition": None},
    {"acquisition": {"timeout_ms": 1}},
    {"acquisition": Acquisition},
    {"auto_extend": 1},
    {"auto_extend": None},
    {"max_hold_ms": 1_000},
    *[{"auto_extend": True, "max_hold_ms": ttl} for ttl in (0, -1, 1.0, True)],
    {"on_lost": 1},
    {"on_release_error": "x"},
]


@pytest.mark.usefixtures("untouched")
def test_input_that_lock_refuses_is_not_sent(syncguard_redis):
    with syncguard_redis.client() as client:
        backend = RedisBackend(client)
        for case in LOCK_CASES:
            arguments = {"key": "k", **case}
            with pytest.raises(LockError) as caught, lock(backend, **arguments):
                pytest.fail(f"{case} was accepted")
            assert caught.value.code == "InvalidArgument", case
            with pytest.raises(LockError) as caught, backend.lock(**arguments):
                pytest.fail(f"{case} was accepted")
            assert caught.value.code == "InvalidArgument", case


@pytest.mark.usefixtures("untouched")
def test_input_that_the_asyncio_lock_refuses_is_not_sent(syncguard_redis):
    async def run():
        async with AsyncRedisBackend.from_url(syncguard_redis.url) as backend:
            for case in LOCK_CASES:
                arguments = {"key": "k", **case}
                with pytest.raises(LockError) as caught:
                    async with aio.lock(backend, **arguments):
                        pytest.fail(f"{case} was accepted")
                assert caught.value.code == "InvalidArgument", case

    asyncio.run(run())


@pytest.mark.usefixtures("untouched")
def test_a_lock_whose_signal_is_already_set_sends_nothing(syncguard_redis):
    signal = threading.Event()
    signal.set()
    with syncguard_redis.client() as client:
        with pytest.raises(LockError) as caught, lock(RedisBackend(client), "k", signal=signal):
            pytest.fail("the lock was acquired")
    assert caught.value.code == "Aborted"


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("backend_class", [RedisBackend, AsyncRedisBackend])
@pytest.mark.parametrize(
    "url",
    ["", "localhost", "http://localhost", "redis://host:notaport/0", "redis://[bad", None, 7],
    ids=repr,
)
def test_a_malformed_url_is_refused(backend_class, url):
    refused(lambda: backend_class.from_url(url))


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("backend_class", [RedisBackend, AsyncRedisBackend])
def test_an_unknown_client_option_is_refused(backend_class, syncguard_redis):
    refused(lambda: backend_class.from_url(syncguard_redis.url, sokcet_timeout=1))
