"""The tool that makes mutants: each is one small mistake, and still a program."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from mutations import mutants_of
from run import explained, identity
from targets import TARGETS, Target


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


# -- what is written about the mutants --------------------------------------------------------

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/explanation/safety.md").read_text(encoding="utf-8")
ROWS_TEXT = PAGE.partition("| file | mutants |")[2].partition("\n\n")[0]
ROWS = {
    name: tuple(map(int, figures))
    for name, *figures in re.findall(r"^\| (.+) \| (\d+) \| (\d+) \| (\d+) \|$", ROWS_TEXT, re.M)
}
"""By file, and at last for all: the numbers of mutants, of noticed ones, of explained ones."""


def made_today(target: Target) -> list[str]:
    file = ROOT / target.path
    text = file.read_text(encoding="utf-8")
    return [identity(each, text) for each in mutants_of(text, file.suffix, target.functions)]


def test_the_documentation_has_a_row_for_every_file_that_is_mutated():
    assert list(ROWS) == [*(f"`{target.path}`" for target in TARGETS), "all"]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.path)
def test_the_row_of_a_file_has_the_number_of_mutants_that_the_tool_makes_today(target):
    mutants, _noticed, _explained = ROWS[f"`{target.path}`"]
    assert mutants == len(made_today(target)), "run the tool for this file, and write its new row"


def test_no_mutant_in_the_documentation_survived():
    for name, (mutants, noticed, with_reason) in ROWS.items():
        assert mutants == noticed + with_reason, f"one of {name} survived"


def test_the_last_row_of_the_documentation_has_the_sums():
    *files, sums = ROWS.values()
    assert sums == tuple(map(sum, zip(*files, strict=True)))


def test_every_explained_mutant_is_one_that_the_tool_makes_today():
    made = {(target.path, mutant) for target in TARGETS for mutant in made_today(target)}
    assert explained() - made == set()
