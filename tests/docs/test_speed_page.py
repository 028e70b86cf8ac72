"""The page Speed has every row of the benchmarks. Its figures, those of one machine, vary."""

from __future__ import annotations

import importlib.util
import sys

import pytest
from pages import DOCS

BENCHMARKS = DOCS.parent / "benchmarks"
PAGE = DOCS / "explanation" / "speed.md"


def load(name):
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rows():
    return load("speed_rows").ROWS


@pytest.fixture
def block():
    text = PAGE.read_text("utf-8")
    begin = "<!-- benchmarks: begin; written by tox run -e benchmarks -->"
    return text.partition(begin)[2].partition("<!-- benchmarks: end -->")[0]


def test_the_page_has_every_row_with_its_goal(rows, block):
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in block.splitlines()
        if line.startswith("| ")
    ]
    assert [(title, goal) for title, _, goal, _ in cells[1:]] == [
        (row.title, row.goal) for row in rows
    ]


def test_each_row_has_its_own_name_and_title(rows):
    assert len({row.name for row in rows}) == len({row.title for row in rows}) == len(rows)


def test_the_table_says_which_goals_are_met(rows):
    load("speed_rows")
    table = load("speed_page").table({"asyncio_one": 0.8, "asyncio_fifty": 2.4, "blocking_lock": 1})
    lines = {line.split("|")[1].strip(): line for line in table.splitlines()}
    titles = {row.name: row.title for row in rows}
    assert lines[titles["asyncio_one"]].endswith("| 0.80 x | at most 0.80 x | yes |")
    assert lines[titles["asyncio_fifty"]].endswith("| 2.40 x | at least 2.50 x | no |")
    assert lines[titles["blocking_lock"]].endswith("| 1.00 x |  |  |")
    assert lines[titles["import_syncguard"]].endswith("| not measured | at most 30.00 ms |  |")
