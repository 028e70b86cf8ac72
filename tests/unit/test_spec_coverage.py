"""docs/spec-coverage.md is correct: every row names tests, and every named test exists."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`([\w/.-]+\.py)::(\w+)`")
NOT_APPLICABLE = "not applicable: "


class Row(NamedTuple):
    section: str
    requirement: str
    tests: str


def rows() -> list[Row]:
    lines = (ROOT / "docs" / "spec-coverage.md").read_text("utf-8").splitlines()
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines if line[:1] == "|"
    ]
    return [Row(*row) for row in cells if row[0] != "section" and not set(row[0]) <= set("-")]


@lru_cache
def defined_in(path: str) -> frozenset[str]:
    """The test functions and test classes of a file, found without importing it."""
    nodes = ast.walk(ast.parse((ROOT / path).read_text("utf-8")))
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return frozenset(node.name for node in nodes if isinstance(node, kinds))


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.section}: {row.requirement}"[:70])
def test_every_requirement_names_tests_that_exist(row):
    named = NAMED.findall(row.tests)
    if row.tests.startswith(NOT_APPLICABLE):
        assert not named
        assert len(row.tests) > len(NOT_APPLICABLE)
        return
    assert named, "this requirement has no test"
    assert len(named) == row.tests.count("<br>") + 1, "not every entry is a `path::name`"
    for path, name in named:
        assert (ROOT / path).is_file(), path
        assert re.match("[Tt]est", name), name
        assert name in defined_in(path), f"{path} has no {name}"


def test_the_table_has_rows():
    assert len(rows()) > 120


def test_no_file_has_two_tests_of_the_same_name():
    """Of two tests with the same name in one file, only the last one runs."""
    folders = ("tests/unit", "tests/redis", "tests/conformance", "syncguard/testing/conformance")
    for path in (path for folder in folders for path in (ROOT / folder).glob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        for scope in [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]:
            names = [
                node.name
                for node in scope.body
                if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
            ]
            assert len(names) == len(set(names)), path


def test_no_two_parts_of_the_conformance_suite_have_a_test_of_the_same_name():
    """One class inherits all parts: a name that occurs in two of them would run once."""
    folder = ROOT / "syncguard" / "testing" / "conformance"
    names = [
        name
        for path in sorted(folder.glob("*.py"))
        for name in re.findall(r"def (test_\w+)", path.read_text("utf-8"))
    ]
    assert sorted(names) == sorted(set(names))
