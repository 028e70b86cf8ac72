"""Keys are made from the arguments that the function gets; else there is an error."""

from __future__ import annotations

import enum
import functools
import uuid
from collections import namedtuple
from datetime import date, datetime, time
from decimal import Decimal
from zoneinfo import ZoneInfo

import celery
import pydantic
import pytest
from celery import Celery, Task
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy
from kombu.utils import json as kombu_json

from syncguard import LockError
from syncguard.key_templates import key_of
from syncguard_celery import locked, locked_task


@pytest.mark.parametrize(
    "template",
    [
        *("{}", "{0}", "{invoice_id!r}", "{invoice_id:03d}", "{invoice_id", "{unknown}", ""),
        *("{invoice_id.}", "{a b}", "{invoice_id.__class__}"),
    ],
)
def test_an_invalid_template_is_refused_when_the_task_is_made(template):
    with pytest.raises(LockError) as refused:
        locked(key=template)(lambda invoice_id: None)
    assert refused.value.code == "InvalidArgument"


def test_a_key_that_is_neither_template_nor_callable_is_refused():
    with pytest.raises(LockError, match="template"):
        locked(key=42)(lambda: None)


class TestCheckedByDelay:
    """``delay()`` refuses these before anything is sent to the broker."""

    @pytest.fixture
    def app(self):
        app = Celery("keys", broker="memory://", fixups=[], set_as_current=False)
        yield app
        app.close()

    def test_arguments_that_make_no_valid_key_are_refused(self, app):
        @locked_task(app=app, key="invoice:{invoice.id}")
        def task(invoice): ...

        with pytest.raises(LockError, match="no key can be made"):
            task.delay(42)

    def test_wrong_arguments_are_refused(self, app):
        @locked_task(app=app, key="invoice:{invoice_id}")
        def task(invoice_id): ...

        with pytest.raises(TypeError):
            task.delay()
        with pytest.raises(TypeError):
            task.delay(1, 2)

    def test_self_is_not_counted_as_an_argument_of_delay(self, app):
        @locked_task(app=app, bind=True, key="{self.name}:{invoice_id}")
        def task(self, invoice_id): ...

        with pytest.raises(TypeError):
            task.delay(1, 2)

    def test_wrong_arguments_of_a_task_with_a_callable_key_are_refused(self, app):
        @locked_task(app=app, key=lambda invoice_id: f"invoice:{invoice_id}")
        def task(invoice_id): ...

        with pytest.raises(TypeError):
            task.delay()

    def test_a_base_class_may_add_arguments(self, app):
        class OfTenant(Task):
            def apply_async(self, args=None, kwargs=None, **options):
                return super().apply_async(args, {**(kwargs or {}), "tenant": "acme"}, **options)

        @locked_task(app=app, base=OfTenant, key="{tenant}:{invoice_id}")
        def task(invoice_id, tenant):
            return tenant

        task.delay(1)

    def test_a_task_with_typing_false_accepts_any_arguments(self, app):
        @locked_task(app=app, typing=False, key="{invoice_id}")
        def task(invoice_id): ...

        task.delay(1, only_the_base_class_knows=True)

    def test_a_callable_key_is_called_only_in_the_worker(self, app):
        @locked_task(app=app, key=lambda invoice: invoice.id)
        def task(invoice): ...

        task.delay(42)


def test_a_bound_task_whose_run_was_replaced_has_the_same_key(app, syncguard_backend):
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


class Moment(datetime):
    def __str__(self):
        return "its own text"


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    "value",
    [
        *("red", 7, True, None, 1.5, float("inf"), b"ab", b"\xff", Kind.RED, Level.HIGH),
        *((1, 2), [1, (2, "a")], {"a": (1,)}, {7: 2, None: 3, True: 4, 1.5: 5}, Point(1, Kind.RED)),
        *(uuid.UUID(int=7), Decimal("1.50"), Decimal("NaN"), time(1, 2, 3), date(2026, 1, 2)),
        *(datetime(2026, 1, 2, 3, 4, 5, 6), Moment(2026, 1, 2)),  # noqa: DTZ001
        datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
        [datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)],
        [Kind.RED, {Kind.RED: Level.HIGH}, uuid.UUID(int=7), Decimal("1.50"), date(2026, 1, 2)],
        [mark_safe("<b>"), gettext_lazy("yes")],
        gettext_lazy("yes"),
    ],
    ids=repr,
)
def test_a_key_has_the_text_of_the_serialized_argument(value):
    make = key_of("{value}", lambda value: None)
    received = kombu_json.loads(kombu_json.dumps(value))
    assert make(value) == make(received) == str(received)


@pytest.mark.skipif(celery.VERSION < (5, 5), reason="Celery before 5.5 has no pydantic=True")
class TestModels:
    """With pydantic=True a task's function gets models, and its message has dictionaries."""

    @pytest.fixture
    def order(self):
        class Order(pydantic.BaseModel):
            id: int

        return Order

    @pytest.mark.parametrize("at", ["run", "publish"])
    @pytest.mark.parametrize("key", ["order:{order.id}", lambda self, order: f"order:{order.id}"])
    def test_a_key_is_made_from_models(self, app, deliver, order, at, key, syncguard_backend):
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

    def test_invalid_arguments_are_refused_when_the_task_is_published(
        self, app, order, syncguard_backend
    ):
        def task(order): ...

        task.__annotations__["order"] = order
        options = {"key": "order:{order.id}", "at": "publish", "pydantic": True}
        task = locked_task(app=app, name="pay", pydantic_strict=True, **options)(task)
        with pytest.raises(LockError, match="not valid") as caught:
            task.delay({"id": "secret"})
        assert "secret" not in str(caught.value)
        assert syncguard_backend.count_live_locks() == 0
