"""The shop of these tests runs what the pages print, without a hidden branch."""

from __future__ import annotations

import ast
from pathlib import Path

from pages import ROOT, blocks_of

SHOP = Path(__file__).parent / "shopsite" / "shop"


def functions_of(source: str) -> list[str]:
    return [ast.dump(node) for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]


def test_the_task_of_the_shop_is_the_one_that_the_readme_prints():
    printed = [
        block.text
        for block in blocks_of("file", ROOT / "README.md")
        if block.words[1] == "shop/tasks.py"
    ]
    assert functions_of("".join(printed)) == functions_of((SHOP / "tasks.py").read_text())
    assert len(printed) == 1
