"""What is built is complete: installed into an empty environment, the quick start runs from it."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path, PurePosixPath

import pytest
from pages import ROOT, blocks_of
from shop_project import Project, quick_start

PACKAGES = ("syncguard", "syncguard_celery", "syncguard_django")


def run(*command: str) -> str:
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=110
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the sdist, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT))
    return folder


def sources(*endings: str) -> set[str]:
    """The files of the packages, as the checkout has them."""
    found = [path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.is_file()]
    return {
        str(PurePosixPath(path.relative_to(ROOT)))
        for path in found
        if path.suffix in endings or path.name in endings
    }


def test_the_wheel_has_all_that_the_packages_are_made_of(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert sources(".py", ".lua", ".html", ".js", ".css", ".mo", "py.typed") <= names


def test_the_wheel_has_nothing_but_the_packages(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)


def test_the_sdist_has_what_its_tests_and_its_documentation_need(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = ["README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "tox.ini", "mkdocs.yml"]
    assert {*wanted, ".ci/run", "docs/index.md", "tests/docs/pages.py"} <= names
    assert "example_project/demo.py" in names


@pytest.mark.timeout(1_200)  # it downloads and installs Django and Celery
def test_the_quick_start_runs_from_the_wheel_in_an_empty_environment(
    built, tmp_path, syncguard_redis
):
    (wheel,) = built.glob("*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[django,celery]")
    run(python, "-m", "pip", "check")
    where = "import syncguard_celery as package; print(package.__file__)"
    project = Project(tmp_path / "project", syncguard_redis.url, python)
    project.folder.mkdir()
    assert project.python_code(where).startswith(str(tmp_path / "venv") + os.sep)

    outcome = quick_start(project, blocks_of("file", ROOT / "README.md"))
    assert outcome.splitlines() == ["once, and fenced", "No live locks."]
