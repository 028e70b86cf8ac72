"""Keys are made from the bound arguments of a call, or an error is raised."""

from __future__ import annotations

import enum
import functools
import inspect
import uuid
from collections import namedtuple
from datetime import date, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import pytest

from syncguard import LockError
from syncguard.key_templates import Binder, key_maker, key_of


def settle(invoice, currency="EUR", *lines, note=None, **rest):
    """What is called."""


@pytest.mark.parametrize(
    ("template", "key"),
    [
        ("invoice", "invoice"),
        ("invoice:{invoice}", "invoice:7"),
        ("{currency}:{invoice}", "EUR:7"),
        ("{{{invoice}}}", "{7}"),
        ("{note}", "None"),
    ],
)
def test_a_template_is_filled_with_the_arguments_and_their_defaults(template, key):
    assert key_of(template, settle)(7) == key


def test_positional_and_named_arguments_give_the_same_key():
    find = key_of("invoice:{invoice}:{currency}", settle)
    assert find(7, "USD") == find(currency="USD", invoice=7) == "invoice:7:USD"


def test_a_template_can_use_attributes_and_items():
    find = key_of("{invoice.customer.pk}:{note[id]}:{lines[0]}", settle)
    invoice = SimpleNamespace(customer=SimpleNamespace(pk=3))
    assert find(invoice, "EUR", "first", note={"id": 9}) == "3:9:first"


def test_a_template_can_use_extra_keyword_arguments():
    assert key_of("{tenant}", settle)(7, tenant="acme") == "acme"


def test_a_key_can_be_made_by_a_function_of_the_same_arguments():
    find = key_of(lambda invoice, currency, **_: f"{currency}-{invoice}", settle)
    assert find(invoice=7) == "EUR-7"


@pytest.mark.parametrize(
    "template",
    [
        "{}",
        "{0}",
        "{invoice!r}",
        "{invoice:>10}",
        "{invoice:{currency}}",
        "{invoice.__class__}",
        "{invoice._secret}",
        "{invoice.a b}",
        "{a b}",
        "",
        "{invoice()}",
        "{invoice.}",
        "{invoice[]}",
        "{invoice",
        "invoice}",
    ],
)
def test_an_invalid_template_is_refused_when_decorating(template):
    with pytest.raises(LockError, match="key template") as raised:
        key_of(template, settle)
    assert raised.value.code == "InvalidArgument"


def test_an_argument_that_does_not_exist_is_refused_when_decorating():
    with pytest.raises(LockError, match="contains 'nope', which the function does not take"):
        key_of("{nope}", lambda invoice: invoice)


def test_a_key_that_is_neither_a_template_nor_a_function_is_refused():
    with pytest.raises(LockError, match="a template such as"):
        key_of(7, settle)


@pytest.mark.parametrize("template", ["{invoice.pk}", "{invoice[pk]}", "{tenant}"])
def test_a_missing_attribute_or_item_is_an_error_without_the_values(template):
    with pytest.raises(LockError, match="no key can be made") as raised:
        key_of(template, settle)("hunter2")
    assert raised.value.code == "InvalidArgument"
    assert "hunter2" not in str(raised.value)
    assert raised.value.__cause__ is raised.value.__context__ is None


def test_a_key_function_must_return_a_key():
    with pytest.raises(LockError, match="not None"):
        key_of(lambda **_: None, settle)(7)


def test_the_name_of_an_argument_may_begin_with_an_underscore():
    assert key_of("{_private}", lambda _private: None)(7) == "7"


def test_a_template_for_a_partial_uses_the_remaining_arguments():
    def of_method(this, invoice): ...

    partial = functools.partial(of_method, "self")
    functools.update_wrapper(partial, settle)
    assert key_of("{invoice}", partial)(7) == "7"


def key(source, function, *args, **kwargs):
    binder = Binder(function)
    return key_maker(source, binder.signature)(binder.bind(args, kwargs))


def of_o(o):
    """What is called."""


def pay(invoice_id, region="eu", *more, urgent=False, **extra):
    """The function of the calls below."""


def test_positions_names_and_defaults_make_the_same_key():
    template = "invoice:{invoice_id}:{region}"
    calls = [
        key(template, pay, 42),
        key(template, pay, invoice_id=42),
        key(template, pay, 42, "eu"),
        key(template, pay, region="eu", invoice_id=42),
    ]
    assert set(calls) == {"invoice:42:eu"}


def test_nested_attributes_and_items_can_be_used():
    order = SimpleNamespace(customer=SimpleNamespace(id=7), lines=[{"sku": "a"}])
    assert key("{o.customer.id}:{o.lines[0][sku]}", of_o, order) == "7:a"


def test_extra_arguments_can_be_used_by_name():
    assert key("{tenant}", pay, 1, tenant="acme") == "acme"
    assert key("{more[0]}", pay, 1, "eu", "third") == "third"


def test_double_braces_make_a_literal_brace():
    assert key("{{{invoice_id}}}", pay, 1) == "{1}"


@pytest.mark.parametrize("field", ["{o.missing}", "{o[99]}", "{o[name]}"])
def test_a_missing_field_is_an_error_that_shows_no_argument(field):
    with pytest.raises(LockError) as refused:
        key(field, of_o, "a secret")
    assert refused.value.code == "InvalidArgument"
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_an_object_with_the_default_text_makes_no_key():
    # Its text would be its address: every process would lock another key.
    with pytest.raises(
        LockError, match=r"has no stable string form; use a field of it, e\.g\. {o\.id}\."
    ):
        key("{o}", of_o, object())


def test_an_object_whose_str_raises_makes_no_key():
    class Rude:
        def __str__(self):
            raise RuntimeError("secret")

    with pytest.raises(LockError, match="RuntimeError"):
        key("{o}", of_o, Rude())


def test_a_template_that_makes_an_invalid_key_is_an_error():
    with pytest.raises(LockError):
        key("{o}", of_o, "")
    with pytest.raises(LockError):
        key("{o}", of_o, "x" * 600)


def test_arguments_that_do_not_fit_raise_type_error_like_any_call():
    with pytest.raises(TypeError, match="invoice_id"):
        key("{invoice_id}", pay)


@pytest.mark.parametrize(
    "source",
    [
        lambda invoice_id, region, **_: f"{invoice_id}:{region}",
        lambda region, invoice_id, **_: f"{invoice_id}:{region}",
        lambda *args, **_: f"{args[0]}:{args[1]}",
        lambda i, r, urgent: f"{i}:{r}" if not urgent else "",
    ],
)
def test_a_callable_gets_the_arguments_by_name_or_by_position(source):
    assert key(source, pay, 42) == "42:eu"


def test_a_callable_without_a_signature_gets_them_by_position():
    assert key(str, of_o, 42) == "42"


def test_none_means_no_lock():
    assert key(lambda **_: None, pay, 42) is None


def test_a_callable_that_returns_something_else_is_an_error():
    with pytest.raises(LockError, match="not int"):
        key(lambda **_: 42, pay, 42)


def test_an_error_in_the_callable_is_raised_unchanged():
    with pytest.raises(ZeroDivisionError):
        key(lambda **_: 1 / 0, pay, 42)


def plain(a, b=2, c=3):
    """A function with plain parameters."""


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((1,), {}), ((1, 5), {"c": 6}), ((), {"a": 1}), ((), {"c": 1, "a": 2}), ((1, 2, 3), {})],
)
def test_the_fast_binding_equals_that_of_inspect(args, kwargs):
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


class Kind(str, enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@pytest.mark.parametrize(("given", "sent"), [(Kind.RED, "red"), (Level.HIGH, 3)])
def test_an_enum_member_has_the_text_that_a_worker_receives(given, sent):
    def paint(kind): ...

    assert key("{kind}", paint, given) == key("{kind}", paint, sent)


@pytest.mark.parametrize(
    ("given", "received"),
    [((1, 2), [1, 2]), ([(1, "a")], [[1, "a"]]), ({1: (2,)}, {"1": [2]}), ({"a": 1}, {"a": 1})],
)
def test_a_collection_has_the_text_that_a_worker_receives(given, received):
    def sort(boxes): ...

    assert key("{boxes}", sort, given) == key("{boxes}", sort, received) == str(received)


def test_a_collection_that_json_cannot_encode_has_its_own_text():
    def sort(boxes): ...

    assert key("{boxes}", sort, [1j]) == "[1j]"


def test_a_parameter_overrides_an_extra_argument_of_the_same_name():
    def function(x, /, **more): ...

    assert key("{x}", function, 1, x=2) == "1"
    assert key("{y}", function, 1, y=2) == "2"


def of_x(x):
    """What is called."""


class Named:
    def __str__(self):
        return "a text of its own"


class Record(Named):
    """Like a Django model: its text is a display name."""

    pk = 7


Point = namedtuple("Point", "x y")
NOW = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("red", "red"),
        (True, "True"),
        (None, "None"),
        (1.5, "1.5"),
        (Point(1, 2), "[1, 2]"),
        (uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (date(2026, 1, 2), "2026-01-02"),
        (datetime(2026, 1, 2, 3), "2026-01-02 03:00:00"),  # noqa: DTZ001
        (NOW, "2026-10-25 02:30:00+01:00"),
        (Decimal("1.50"), "1.50"),
        (b"ab", "b'ab'"),
        (timedelta(1), "1 day, 0:00:00"),
        (Named(), "a text of its own"),
        ("meet me at 0xdeadbeef", "meet me at 0xdeadbeef"),
        (["at 0xdeadbeef"], "['at 0xdeadbeef']"),
        ({None: 1, True: 2, 1.5: Level.HIGH}, "{'null': 1, 'true': 2, '1.5': 3}"),
        ({Kind.RED: 4}, "{'red': 4}"),
        ({uuid.UUID(int=7): (1,)}, "{UUID('00000000-0000-0000-0000-000000000007'): [1]}"),
    ],
)
def test_a_value_has_the_text_that_a_worker_receives(given, text):
    assert key_of("{x}", of_x)(given) == text


def test_an_object_with_a_json_method_has_the_text_of_its_result():
    class Money:
        def __json__(self):
            return (5, "EUR")

    assert key_of("{x}", of_x)(Money()) == "[5, 'EUR']"


@pytest.mark.parametrize(
    "value",
    [
        object(),
        lambda: None,
        [object()],
        {"a": (1, [object()])},
        {object(): 1},
        (n for n in "generator"),
        [Named()],
        SimpleNamespace(inside=object()),
        {"a", "b"},
        [frozenset("ab")],
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_without_a_stable_text_makes_no_key(value):
    with pytest.raises(
        LockError, match=r"{x} has no stable string form; .* e.g. {x.id}\."
    ) as caught:
        key_of("{x}", of_x)(value)
    assert caught.value.code == "InvalidArgument"
    assert "0x" not in str(caught.value)


@pytest.mark.parametrize("value", [Record(), [Record()], {"a": Record()}])
def test_a_record_makes_no_key_because_its_text_is_a_display_name(value):
    with pytest.raises(LockError, match=r"{x} has no stable string form; .* e.g. {x.pk}\."):
        key_of("{x}", of_x)(value)
    assert key_of("{x.pk}", of_x)(Record()) == "7"
