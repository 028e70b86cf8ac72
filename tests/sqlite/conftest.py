"""A path for a lock file, and backends on it."""

from __future__ import annotations

import pytest

from syncguard.sqlite import SQLiteBackend


@pytest.fixture
def path(tmp_path):
    folder = tmp_path / "locks"
    folder.mkdir()
    return folder / "locks.sqlite3"


@pytest.fixture
def backend(path):
    with SQLiteBackend(path) as backend:
        yield backend
