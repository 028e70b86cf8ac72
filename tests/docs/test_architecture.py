"""The page about the architecture names the modules and functions that exist."""

from __future__ import annotations

import importlib
import importlib.util
import re

import pytest
from pages import DOCS, ROOT, blocks_of

PAGE = DOCS / "explanation" / "architecture.md"
PICTURE = DOCS / "images" / "architecture.svg"
PACKAGES = ("syncguard", "syncguard_django", "syncguard_celery")


def modules_on_the_page() -> list[str]:
    (tree,) = blocks_of("tree", PAGE)
    found, folders = [], []
    for line in filter(None, tree.text.splitlines()):
        depth = (len(line) - len(line.lstrip())) // 2
        name, *words = line.split()
        folders = [*folders[:depth], name]
        if name.endswith(".py"):
            found.append("".join(folders))
            assert words or name == "__init__.py" or name[0].isdigit(), f"{name} is not explained"
    return found


def modules_in_the_tree() -> list[str]:
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return [str(path.relative_to(ROOT)) for path in files]


def names_in_the_picture() -> list[tuple[str, str]]:
    return re.findall(r'data-module="([\w.]+)">([\w.]+)<', PICTURE.read_text("utf-8"))


def test_every_module_is_on_the_page_once_and_every_module_on_the_page_exists():
    assert sorted(modules_on_the_page()) == sorted(modules_in_the_tree())


@pytest.mark.parametrize(("module", "name"), names_in_the_picture())
def test_every_function_in_the_picture_exists(module, name):
    found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    assert found.__module__ == module


def test_every_lua_script_in_the_picture_exists():
    scripts = re.findall(r">(\w+\.lua)<", PICTURE.read_text("utf-8"))
    assert scripts
    assert all((ROOT / "syncguard" / "redis" / "lua" / script).is_file() for script in scripts)


def test_every_rule_of_import_linter_is_explained():
    rules = (ROOT / "pyproject.toml").read_text("utf-8").count("[[tool.importlinter.contracts]]")
    section = PAGE.read_text("utf-8").split("## Which module may import which")[1].split("\n## ")[0]
    assert len(re.findall(r"^\d\. ", section, re.MULTILINE)) == rules


def test_every_path_on_the_page_exists():
    section = PAGE.read_text("utf-8").split("## Where a change goes")[1]
    for path in re.findall(r"`(syncguard\w*/[\w/.]+)`", section):
        assert (ROOT / path).exists(), path


def test_a_module_that_moved_is_found_by_its_new_name_only():
    (block,) = blocks_of("moved", ROOT / "CHANGELOG.md")
    for line in block.text.splitlines():
        old, new = line.split()
        assert importlib.util.find_spec(new), new
        assert not importlib.util.find_spec(old), old
