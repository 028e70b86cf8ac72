"""The documentation is tested in one environment, tox's ``docs``, which has what it takes.

Elsewhere it would say the same again, for two minutes each time: there, ``test_site`` is skipped
and says so, and the rest is left out.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

collect_ignore = [
    path.name
    for path in Path(__file__).parent.glob("test_*.py")
    if find_spec("mkdocs") is None and path.name != "test_site.py"
]
