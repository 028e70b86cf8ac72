"""The project itself: what it ships, what it imports, how it is tested."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata, resources
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]


def readme_test_command() -> str:
    section = (ROOT / "README.md").read_text().split("## Test SyncGuard itself")[1]
    return re.search(r"```console\n(.*?)\n```", section, re.DOTALL).group(1)


def supported_pythons() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = [re.search(r"Python :: (3\.\d+)$", line) for line in project["classifiers"]]
    return [found.group(1) for found in versions if found]


def test_the_readme_has_one_command_that_runs_the_tests():
    assert "\n" not in readme_test_command()


def test_ci_runs_the_command_of_the_readme():
    assert readme_test_command() in (ROOT / ".ci" / "run").read_text().splitlines()


def test_every_supported_python_is_tested_by_tox_and_ci():
    pythons = supported_pythons()
    factors = ",".join(version.replace(".", "") for version in pythons[:-1])
    assert f"py{{{factors}}}" in (ROOT / "tox.ini").read_text()
    newest_first = ", ".join(f'"{version}"' for version in reversed(pythons))
    assert f"SUPPORTED = ({newest_first})" in (ROOT / "toxfile.py").read_text()
    assert f"supported=({' '.join(pythons)})" in (ROOT / ".ci" / "run").read_text()


def test_the_package_is_marked_as_typed():
    assert resources.files("syncguard").joinpath("py.typed").is_file()


def test_pytest_finds_the_plugin_of_the_installed_package():
    try:
        metadata.distribution("syncguard")
    except metadata.PackageNotFoundError:
        pytest.skip("syncguard is not installed here")
    plugins = {entry.name: entry.value for entry in metadata.entry_points(group="pytest11")}
    assert plugins["syncguard"] == "syncguard.testing.plugin"


@pytest.mark.parametrize("module", ["syncguard", "syncguard.testing", "syncguard.testing.plugin"])
def test_importing_it_imports_no_driver_and_no_framework(module):
    unwanted = ["redis", "syncguard.redis", "django", "celery"]
    script = f"import sys, {module}; print([m for m in {unwanted} if m in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=ROOT
    )
    assert run.stdout.strip() == "[]"
