"""The built site: complete, and loading nothing from anywhere else."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from pages import DOCS, ROOT

pytest.importorskip("mkdocs", reason="the documentation is tested by tox run -e docs")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900
    )
    assert built.returncode == 0, built.stdout
    return folder


def test_every_page_is_built(site):
    for page in DOCS.rglob("*.md"):
        path = page.relative_to(DOCS).with_suffix(".html")
        name = "index.html" if path.name == "README.html" else path.name
        assert (site / path.parent / name).is_file()


def test_no_page_loads_anything_from_another_site(site):
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|link|img|iframe)\b[^>]*\"(https?:)?//[^\"]*\"", page.read_text()
        )
        assert not loaded, page


def test_the_reference_shows_signatures_and_docstrings(site):
    api = re.sub(r"<[^>]+>", "", (site / "reference" / "api.html").read_text())
    assert "max_hold_ms" in api
    assert "A lock for a with block or, as a decorator, for a function." in api
