"""Key templates: what they may name, and what they are refused for, when decorating."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from syncguard import LockError
from syncguard_django.key_templates import key_of


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


def test_a_template_reaches_attributes_and_items():
    find = key_of("{invoice.customer.pk}:{note[id]}:{lines[0]}", settle)
    invoice = SimpleNamespace(customer=SimpleNamespace(pk=3))
    assert find(invoice, "EUR", "first", note={"id": 9}) == "3:9:first"


def test_a_template_reaches_what_comes_as_further_keywords():
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
        "{_private}",
        "{invoice._secret}",
        "{invoice()}",
        "{invoice.}",
        "{invoice[]}",
        "{invoice",
        "invoice}",
    ],
)
def test_anything_else_is_refused_when_decorating(template):
    with pytest.raises(LockError, match="key template") as raised:
        key_of(template, settle)
    assert raised.value.code == "InvalidArgument"


def test_an_argument_that_does_not_exist_is_refused_when_decorating():
    with pytest.raises(LockError, match="names 'nope', which the function does not take"):
        key_of("{nope}", lambda invoice: invoice)


def test_what_is_neither_template_nor_function_is_refused():
    with pytest.raises(LockError, match="a template or a function"):
        key_of(7, settle)


@pytest.mark.parametrize("template", ["{invoice.pk}", "{invoice[pk]}", "{tenant}"])
def test_a_call_whose_arguments_do_not_have_it_is_refused_without_their_values(template):
    with pytest.raises(LockError, match="the arguments of this call have no") as raised:
        key_of(template, settle)("hunter2")
    assert "hunter2" not in str(raised.value)
