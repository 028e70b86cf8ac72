"""What is built is complete: installed into an empty environment, the quick start runs from it."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from email.message import Message
from pathlib import Path, PurePosixPath

import pytest
from pages import ROOT, blocks_of, links
from shop_project import Project, quick_start

PACKAGES = ("syncguard", "syncguard_celery", "syncguard_django")
REPOSITORY = "https://github.com/syncguard/syncguard-python"
IN_THE_REPOSITORY = re.compile(rf"{re.escape(REPOSITORY)}/(?P<kind>blob|raw)/main/(?P<path>[^#]+)")


def run(*command: str) -> str:
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900
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


def metadata(built: Path) -> Message:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_links_and_images_of_the_readme_work_on_the_page_of_an_index(built, tmp_path):
    """There the page has another address than in the repository: a relative one leads nowhere."""
    described = metadata(built)
    assert described["Description-Content-Type"] == "text/markdown"
    shown = tmp_path / "description.md"
    shown.write_bytes(described.get_payload(decode=True))
    written = links(ROOT / "README.md")
    assert len(links(shown)) == len(written) > 20
    for before, after in zip(written, links(shown), strict=True):
        if before.startswith("https://"):
            assert after == before
            continue
        target = IN_THE_REPOSITORY.fullmatch(after.partition("#")[0])
        assert target, f"{before} became {after}"
        assert target["path"] == before.partition("#")[0]
        assert (ROOT / target["path"]).is_file()
        assert target["kind"] == ("blob" if target["path"].endswith(".md") else "raw")
    assert (
        shown.read_text()
        .replace(f"{REPOSITORY}/blob/main/", "")
        .replace(f"{REPOSITORY}/raw/main/", "")
        == (ROOT / "README.md").read_text()
    ), "nothing else is changed"


def test_the_addresses_of_the_project_are_in_one_repository(built):
    addresses = dict(line.split(", ") for line in metadata(built).get_all("Project-URL"))
    assert set(addresses) == {"Homepage", "Documentation", "Source", "Changelog", "Issues"}
    for address in addresses.values():
        assert address == REPOSITORY or address.startswith(f"{REPOSITORY}/")
        if inside := IN_THE_REPOSITORY.fullmatch(address):
            assert (ROOT / inside["path"]).is_file()


def test_the_versions_of_django_are_among_the_classifiers(built):
    """That they exist is checked by the build itself."""
    shown = [line for line in metadata(built).get_all("Classifier") if "Django ::" in line]
    assert shown == [f"Framework :: Django :: {version}" for version in ("5.2", "6.0", "6.1")]


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
