"""Simulates installed packages with a backend, by their entry points."""

from __future__ import annotations

import uuid

import pytest


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a package with the given entry points of the group ``syncguard.backends``."""

    def install(**schemes):
        folder = tmp_path / uuid.uuid4().hex
        package = folder / f"some_{folder.name}-1.0.dist-info"
        package.mkdir(parents=True)
        (package / "METADATA").write_text(f"Name: some_{folder.name}\nVersion: 1.0\n")
        lines = [f"{scheme} = {value}" for scheme, value in schemes.items()]
        (package / "entry_points.txt").write_text("\n".join(["[syncguard.backends]", *lines]))
        monkeypatch.syspath_prepend(folder)

    return install
