"""The tool that makes mutants: each is one small mistake, and still a program."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from mutations import mutants_of
from targets import TARGETS


def changes(text: str, suffix: str = ".py", *functions: str) -> set[str]:
    return {mutant.apply(text) for mutant in mutants_of(text, suffix, functions)}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a < b", "a <= b"),
        ("a >= b", "a > b"),
        ("a is None", "a is not None"),
        ("a not in b", "a in b"),
        ("a and (b)", "a or (b)"),
        ("not a", "(a)"),
        ("(a) + b", "(a) - b"),
        ("min(a, b)", "max(a, b)"),
        ("True", "False"),
        ("a()", "pass"),
        ("raise a", "pass"),
    ],
)
def test_python_gets_the_mistakes_that_people_make(before, after):
    assert after in changes(before)


def test_a_condition_is_turned_round():
    assert "if (not (a)):\n    b = 1" in changes("if a:\n    b = 1")


def test_texts_that_are_joined_have_no_mutant():
    assert changes("'a' + b") == set()


def test_letters_of_several_bytes_do_not_shift_the_change():
    assert changes("'ä' if a < b else c") == {"'ä' if a <= b else c"}


def test_only_the_named_functions_are_changed():
    text = "def f(a):\n    return a < 1\n\nclass C:\n    def g(self, a):\n        return a > 1\n"
    assert changes(text, ".py", "C.g") == {text.replace("a > 1", "a >= 1")}


def test_a_function_that_does_not_exist_is_an_error():
    with pytest.raises(LookupError, match="no such function: g"):
        mutants_of("def f(): ...", ".py", ("g",))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("if a ~= b then", "if a == b then"),
        ("if a > b then", "if a >= b then"),
        ("if not a then", "if a then"),
        ("local a = b + c", "local a = b - c"),
        ("return -2", "return -1"),
        ("call('DEL', KEYS[1])", ""),
    ],
)
def test_lua_gets_the_mistakes_that_people_make(before, after):
    assert after in changes(before, ".lua")


@pytest.mark.parametrize("line", ["-- a < b", "local a = 'b < c'"])
def test_comments_and_texts_of_lua_stay(line):
    assert changes(line, ".lua") == set()


def test_every_mutant_of_this_file_is_a_program():
    with open(__file__, encoding="utf-8") as file:
        text = file.read()
    mutants = mutants_of(text, ".py")
    assert mutants
    for mutant in mutants:
        ast.parse(mutant.apply(text))


def test_what_is_only_for_the_type_checker_has_no_mutants():
    assert changes("if TYPE_CHECKING:\n    import this\n") == set()


def test_the_documentation_has_a_row_for_every_file_that_is_mutated():
    page = Path(__file__).parents[2] / "docs" / "explanation" / "safety.md"
    rows = re.findall(r"^\| `(.+)` \| (\d+) \| (\d+) \| (\d+) \|$", page.read_text(), re.MULTILINE)
    assert [path for path, *_ in rows] == [target.path for target in TARGETS]
    for path, mutants, noticed, explained in rows:
        assert int(mutants) == int(noticed) + int(explained), f"one of {path} survived"
