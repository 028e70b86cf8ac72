"""The quick start of the README, as a reader has it: in a project, with a worker, on a Redis."""

from __future__ import annotations

import ast

from pages import ROOT, blocks_of
from shop_project import Project, quick_start

README = ROOT / "README.md"
FILES = blocks_of("file", README)


def test_the_quick_start_has_at_most_twenty_lines():
    assert sum(len(block.text.splitlines()) for block in FILES) <= 20


def test_the_quick_start_is_python():
    for block in FILES:
        ast.parse(block.text, str(block))


def test_twenty_tasks_settle_one_invoice_once(tmp_path, syncguard_redis):
    outcome = quick_start(Project(tmp_path, syncguard_redis.url), FILES)
    assert outcome.splitlines() == ["once, and fenced", "No live locks."]
