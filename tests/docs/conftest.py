"""The documentation is tested in one environment, tox's ``docs``, which has what it takes.

Elsewhere it would say the same again, for two minutes each time: there, ``test_site`` is skipped
and says so, and the rest is left out.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent

collect_ignore = [
    path.name
    for path in HERE.glob("test_*.py")
    if find_spec("mkdocs") is None and path.name != "test_site.py"
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Pages are whole projects: on a busy machine, the programs of one take minutes."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(1_200))
