"""The documentation is tested in one environment, tox's ``docs``, which has what it takes.

Elsewhere it would say the same again, for a minute each time.
"""

from __future__ import annotations

from importlib.util import find_spec

IS_TESTED_HERE = find_spec("mkdocs") is not None

collect_ignore_glob = [] if IS_TESTED_HERE else ["test_*.py"]


def pytest_report_header() -> str | None:
    return None if IS_TESTED_HERE else "documentation: tested by tox run -e docs, not here"
