"""Whatever a caller passes to a public function, the only error is ``InvalidArgument``.

Hypothesis calls every public function with values of wrong types in some of its parameters, and
right values in the others. Results and errors are values that SyncGuard makes: not called here.
"""

from __future__ import annotations

import asyncio
import inspect

import fakeredis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import syncguard
import syncguard_celery
from syncguard import LockError, aio, generate_lock_id
from syncguard.backends import async_from_url, from_url
from syncguard.redis import AsyncRedisBackend, RedisBackend

WRONG = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.binary(max_size=5),
    st.text(max_size=5),
    st.just("\ud800"),
    st.just("k\0"),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=1),
    st.builds(object),
    st.just(int),
    st.just(len),
)
RIGHT = {
    "key": st.just("k"),
    "lock_id": st.builds(generate_lock_id),
    "ttl_ms": st.just(30_000),
    "acquired": st.builds(lambda: blocking().acquire(generate_lock_id(), 60_000)),
}
OPTIONAL = inspect.Parameter.empty


def blocking():
    return RedisBackend(fakeredis.FakeRedis())


def asynchronous():
    return AsyncRedisBackend(fakeredis.FakeAsyncRedis())


def functions_of(module, names):
    return {
        f"{module.__name__}.{name}": getattr(module, name)
        for name in names
        if inspect.isfunction(getattr(module, name))
    }


def methods_of(make):
    kind = type(make())
    return {
        f"{kind.__name__}.{name}": lambda _name=name, **given: getattr(make(), _name)(**given)
        for name in dir(kind)
        if not name.startswith("_") and inspect.isfunction(getattr(kind, name)) and name != "close"
    }


def parameters_of(name, function):
    if "Backend." in name:
        owner, _, method = name.partition(".")
        function = getattr({"RedisBackend": RedisBackend}.get(owner, AsyncRedisBackend), method)
    found = dict(inspect.signature(function).parameters)
    found.pop("self", None)
    return {n: p for n, p in found.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}


FUNCTIONS = {
    **functions_of(syncguard, syncguard.__all__),
    **functions_of(aio, aio.__all__),
    **functions_of(syncguard_celery, syncguard_celery.__all__),
    "from_url": from_url,
    "async_from_url": async_from_url,
    "Acquisition": syncguard.Acquisition,
    **methods_of(blocking),
    **methods_of(asynchronous),
}
# Called by our own code only; and health, which has no parameter.
INTERNAL = {"health", "run_acquire", "acquire_call", "pass_on_call", "undo", "attempt", "ring"}
FUNCTIONS = {n: f for n, f in FUNCTIONS.items() if n.rpartition(".")[2] not in INTERNAL}


def run(function, given):
    result = function(**given)
    if inspect.iscoroutine(result):
        return asyncio.run(asyncio.wait_for(result, 20))
    return result


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
@settings(max_examples=20)
@given(data=st.data())
def test_wrong_types_are_invalid_arguments(name, data):
    function = FUNCTIONS[name]
    given = {}
    for parameter, declared in parameters_of(name, function).items():
        right = RIGHT.get(parameter)
        if parameter == "backend":
            is_async = name.startswith("syncguard.aio.")
            right = st.builds(asynchronous if is_async else blocking)
        choices = [WRONG] if right is None else [right, WRONG]
        may_omit = declared.default is not OPTIONAL
        if may_omit and data.draw(st.booleans(), label=f"omit {parameter}"):
            continue
        given[parameter] = data.draw(st.one_of(*choices), label=parameter)
    codes = set()
    try:
        run(function, given)
    except LockError as error:
        codes.add(error.code)
    assert codes <= {"InvalidArgument"}


@pytest.mark.parametrize(
    "operation",
    [
        lambda: syncguard.get_by_key(None, "k"),
        lambda: syncguard.get_by_id_raw(object(), generate_lock_id()),
        lambda: syncguard.owns(None, generate_lock_id()),
        lambda: asyncio.run(aio.owns(None, generate_lock_id())),
        lambda: syncguard.has_fence(None),
        lambda: syncguard.hold(blocking(), None),
        lambda: aio.hold(asynchronous(), None),
        lambda: RedisBackend(fakeredis.FakeRedis(), hash_secret="\ud800"),
        lambda: syncguard.redis_server_time_ms(None),
        lambda: syncguard.redis_server_time_ms(("now", "then")),
        lambda: syncguard.is_live(None, 1),
    ],
)
def test_these_raised_something_else(operation):
    with pytest.raises(LockError) as caught:
        operation()
    assert caught.value.code == "InvalidArgument"
