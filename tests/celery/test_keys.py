"""Keys are made from the arguments as the function sees them, or not at all."""

from __future__ import annotations

import enum
import functools
import inspect
from types import SimpleNamespace

import celery
import pydantic
import pytest
from celery import Celery, Task

from syncguard import LockError
from syncguard_celery import locked, locked_task
from syncguard_celery.keys import Binder, key_maker


def key(source, function, *args, **kwargs):
    binder = Binder(function)
    return key_maker(source, binder.signature)(binder.bind(args, kwargs))


def settle(invoice_id, region="eu", *more, urgent=False, **extra):
    """What the keys below are made for."""


def test_positions_names_and_defaults_make_the_same_key():
    template = "invoice:{invoice_id}:{region}"
    calls = [
        key(template, settle, 42),
        key(template, settle, invoice_id=42),
        key(template, settle, 42, "eu"),
        key(template, settle, region="eu", invoice_id=42),
    ]
    assert set(calls) == {"invoice:42:eu"}


def test_attributes_and_items_are_reached():
    order = SimpleNamespace(customer=SimpleNamespace(id=7), lines=[{"sku": "a"}])
    assert key("{o.customer.id}:{o.lines[0][sku]}", lambda o: None, order) == "7:a"


def test_extra_arguments_are_there_by_name():
    assert key("{tenant}", settle, 1, tenant="acme") == "acme"
    assert key("{more[0]}", settle, 1, "eu", "third") == "third"


def test_braces_can_be_written():
    assert key("{{{invoice_id}}}", settle, 1) == "{1}"


@pytest.mark.parametrize(
    "template",
    [
        *("{}", "{0}", "{invoice_id!r}", "{invoice_id:03d}", "{invoice_id", "{unknown}", ""),
        *("{invoice_id.}", "{a b}", "{invoice_id.__class__}"),
    ],
)
def test_a_template_that_cannot_be_meant_is_refused_when_the_task_is_made(template):
    with pytest.raises(LockError) as refused:
        locked(key=template)(lambda invoice_id: None)
    assert refused.value.code == "InvalidArgument"


def test_a_key_that_is_neither_template_nor_callable_is_refused():
    with pytest.raises(LockError, match="template"):
        locked(key=42)(lambda: None)


@pytest.mark.parametrize("field", ["{o.missing}", "{o[99]}", "{o[name]}"])
def test_what_is_not_there_is_an_error_that_shows_no_argument(field):
    with pytest.raises(LockError) as refused:
        key(field, lambda o: None, "a secret")
    assert refused.value.code == "InvalidArgument"
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_an_object_without_a_text_of_its_own_makes_no_key():
    # Its text would be its address: another key in every process, and so no lock at all.
    with pytest.raises(LockError, match="no text"):
        key("{o}", lambda o: None, object())


def test_a_text_that_raises_makes_no_key():
    class Rude:
        def __str__(self):
            raise RuntimeError("secret")

    with pytest.raises(LockError, match="RuntimeError"):
        key("{o}", lambda o: None, Rude())


def test_a_key_that_the_lock_would_refuse_is_refused_here():
    with pytest.raises(LockError):
        key("{o}", lambda o: None, "")
    with pytest.raises(LockError):
        key("{o}", lambda o: None, "x" * 600)


def test_arguments_that_do_not_fit_are_a_type_error_as_in_any_call():
    with pytest.raises(TypeError, match="invoice_id"):
        key("{invoice_id}", settle)


@pytest.mark.parametrize(
    "source",
    [
        lambda invoice_id, region, **_: f"{invoice_id}:{region}",
        lambda region, invoice_id, **_: f"{invoice_id}:{region}",
        lambda *args, **_: f"{args[0]}:{args[1]}",
        lambda i, r, urgent: f"{i}:{r}",
    ],
)
def test_a_callable_gets_the_arguments_by_name_or_by_position(source):
    assert key(source, settle, 42) == "42:eu"


def test_a_callable_without_a_signature_gets_them_by_position():
    assert key(str, lambda o: None, 42) == "42"


def test_none_means_no_lock():
    assert key(lambda **_: None, settle, 42) is None


def test_a_callable_that_returns_something_else_is_an_error():
    with pytest.raises(LockError, match="not int"):
        key(lambda **_: 42, settle, 42)


def test_an_error_in_the_callable_is_its_own():
    with pytest.raises(ZeroDivisionError):
        key(lambda **_: 1 / 0, settle, 42)


def plain(a, b=2, c=3):
    """A function of the common kind."""


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((1,), {}), ((1, 5), {"c": 6}), ((), {"a": 1}), ((), {"c": 1, "a": 2}), ((1, 2, 3), {})],
)
def test_the_quick_binding_is_that_of_inspect(args, kwargs):
    slow = inspect.signature(plain).bind(*args, **kwargs)
    slow.apply_defaults()
    quick = Binder(plain).bind(args, kwargs)
    assert (quick.args, quick.kwargs, quick.arguments) == (slow.args, slow.kwargs, slow.arguments)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((1, 2, 3, 4), {}), ((1,), {"a": 1}), ((1,), {"d": 1}), ((), {"d": 1, "b": 1})],
)
def test_a_call_that_does_not_fit_is_a_type_error(args, kwargs):
    with pytest.raises(TypeError):
        Binder(plain).bind(args, kwargs)


class TestAtTheCall:
    """What ``delay()`` refuses never reaches the broker."""

    @pytest.fixture
    def app(self):
        app = Celery("keys", broker="memory://", fixups=[], set_as_current=False)
        yield app
        app.close()

    def test_a_key_that_cannot_be_made(self, app):
        @locked_task(app=app, key="invoice:{invoice.id}")
        def task(invoice): ...

        with pytest.raises(LockError, match="no key can be made"):
            task.delay(42)

    def test_wrong_arguments(self, app):
        @locked_task(app=app, key="invoice:{invoice_id}")
        def task(invoice_id): ...

        with pytest.raises(TypeError):
            task.delay()
        with pytest.raises(TypeError):
            task.delay(1, 2)

    def test_self_is_not_counted(self, app):
        @locked_task(app=app, bind=True, key="{self.name}:{invoice_id}")
        def task(self, invoice_id): ...

        with pytest.raises(TypeError):
            task.delay(1, 2)

    def test_wrong_arguments_of_a_task_with_a_computed_key(self, app):
        @locked_task(app=app, key=lambda invoice_id: f"invoice:{invoice_id}")
        def task(invoice_id): ...

        with pytest.raises(TypeError):
            task.delay()

    def test_arguments_that_a_base_class_adds_on_the_way_are_left_to_it(self, app):
        class OfTenant(Task):
            def apply_async(self, args=None, kwargs=None, **options):
                return super().apply_async(args, {**(kwargs or {}), "tenant": "acme"}, **options)

        @locked_task(app=app, base=OfTenant, key="{tenant}:{invoice_id}")
        def task(invoice_id, tenant):
            return tenant

        task.delay(1)

    def test_a_task_that_is_not_typing_takes_any(self, app):
        @locked_task(app=app, typing=False, key="{invoice_id}")
        def task(invoice_id): ...

        task.delay(1, only_the_base_class_knows=True)

    def test_a_computed_key_is_left_to_the_worker(self, app):
        @locked_task(app=app, key=lambda invoice: invoice.id)
        def task(invoice): ...

        task.delay(42)


def test_a_bound_task_whose_run_somebody_wrapped_has_the_same_key(app, syncguard_backend):
    @locked_task(app=app, key="{tenant}", bind=True, at="publish")
    def task(self, tenant, mode): ...

    run = task.run
    task.run = functools.wraps(run)(lambda *args, **kwargs: run(*args, **kwargs))
    task.delay("acme", "full")
    assert syncguard_backend.is_locked("acme")


class Kind(str, enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@pytest.mark.parametrize(("given", "sent"), [(Kind.RED, "red"), (Level.HIGH, 3)])
def test_a_member_of_an_enumeration_is_what_a_worker_gets_of_it(given, sent):
    def paint(kind): ...

    assert key("{kind}", paint, given) == key("{kind}", paint, sent)


@pytest.mark.parametrize(
    ("given", "received"),
    [((1, 2), [1, 2]), ([(1, "a")], [[1, "a"]]), ({1: (2,)}, {"1": [2]}), ({"a": 1}, {"a": 1})],
)
def test_a_collection_is_what_a_worker_gets_of_it(given, received):
    def sort(boxes): ...

    assert key("{boxes}", sort, given) == key("{boxes}", sort, received) == str(received)


def test_a_collection_that_does_not_travel_as_json_is_its_text():
    def sort(boxes): ...

    assert key("{boxes}", sort, [1j]) == "[1j]"


def test_a_parameter_comes_before_an_extra_argument_of_its_name():
    def function(x, /, **more): ...

    assert key("{x}", function, 1, x=2) == "1"
    assert key("{y}", function, 1, y=2) == "2"


@pytest.mark.skipif(celery.VERSION < (5, 5), reason="Celery before 5.5 has no pydantic=True")
class TestModels:
    """With pydantic=True a task's function sees models, its message dictionaries."""

    @pytest.fixture
    def order(self):
        class Order(pydantic.BaseModel):
            id: int

        return Order

    @pytest.mark.parametrize("at", ["run", "publish"])
    @pytest.mark.parametrize("key", ["order:{order.id}", lambda self, order: f"order:{order.id}"])
    def test_a_key_is_made_from_them(self, app, deliver, order, at, key, syncguard_backend):
        def task(self, order):
            raise self.retry(countdown=1) if not self.request.retries else SystemError

        task.__annotations__["order"] = order
        task = locked_task(app=app, name="pay", key=key, at=at, bind=True, pydantic=True)(task)
        task.delay({"id": 42})
        assert syncguard_backend.is_locked("order:42") == (at == "publish")
        assert deliver().state == "RETRY"
        assert syncguard_backend.is_locked("order:42") == (at == "publish")
        assert deliver().state == "FAILURE"
        assert not syncguard_backend.is_locked("order:42")

    def test_what_is_not_valid_is_refused_when_it_is_published(self, app, order, syncguard_backend):
        def task(order): ...

        task.__annotations__["order"] = order
        options = {"key": "order:{order.id}", "at": "publish", "pydantic": True}
        task = locked_task(app=app, name="pay", pydantic_strict=True, **options)(task)
        with pytest.raises(LockError, match="not valid") as caught:
            task.delay({"id": "secret"})
        assert "secret" not in str(caught.value)
        assert syncguard_backend.count_live_locks() == 0
