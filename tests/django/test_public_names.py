"""The adapter uses only public names of SyncGuard."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import syncguard_django

PUBLIC = (
    "syncguard",
    "syncguard.aio",
    "syncguard.backend",
    "syncguard.backends",
    "syncguard.current",
    "syncguard.key_templates",
    "syncguard.deferred_release",
    "syncguard.short_ttl_warning",
)


def imports():
    for source in Path(syncguard_django.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Import):
                yield from ((alias.name, None) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from ((node.module, alias.name) for alias in node.names)


def test_it_imports_only_public_modules_of_syncguard():
    ours = {module for module, _ in imports() if module.split(".")[0] == "syncguard"}
    assert ours <= set(PUBLIC)


def test_it_imports_only_public_names_of_them():
    for module, name in imports():
        if module in PUBLIC and f"{module}.{name}" not in PUBLIC:
            assert name in importlib.import_module(module).__all__, (module, name)


def test_its_own_public_names_exist():
    assert all(hasattr(syncguard_django, name) for name in syncguard_django.__all__)


def test_it_has_a_py_typed_marker():
    assert (Path(syncguard_django.__file__).parent / "py.typed").is_file()
