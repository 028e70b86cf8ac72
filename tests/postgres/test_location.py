"""Settings of a project: an address, an entry of DATABASES, and what may be a mistake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from psycopg import ClientCursor

from syncguard.backend import GivenLocation, Location, SettingProblem
from syncguard.backends import async_backend_class, backend_class, from_url, make_backend
from syncguard.postgres import AsyncPostgresBackend, PostgresBackend

DATABASE = {
    "ENGINE": "django.db.backends.postgresql",
    "HOST": "db.example",
    "PORT": 5433,
    "NAME": "shop",
    "USER": "shop",
    "PASSWORD": "hunter2",
    "OPTIONS": {"sslmode": "require", "pool": True, "isolation_level": 3},
}


def read(**given):
    return PostgresBackend.read_location(GivenLocation(**given))


def test_the_schemes_lead_to_the_backends():
    for scheme in ("postgresql", "postgres"):
        assert backend_class(scheme) is PostgresBackend
        assert async_backend_class(scheme) is AsyncPostgresBackend
        assert isinstance(from_url(f"{scheme}://127.0.0.1/x"), PostgresBackend)


def test_an_entry_of_databases_becomes_an_address():
    location = read(database=DATABASE)
    assert isinstance(location, Location)
    assert location.store == ("db.example", "5433", "shop")
    backend = make_backend(PostgresBackend, location, key_prefix="shop")
    assert str(backend._address) == "db.example:5433/shop"
    (conninfo,) = backend._address.conninfos
    assert b"hunter2" in conninfo
    assert b"sslmode=require" in conninfo
    assert "hunter2" not in repr(location) + repr(dict(location.options))


def test_the_options_of_the_backend_override_those_of_the_entry():
    location = read(database=DATABASE, options={"host": "direct", "locks_table": "my_locks"})
    backend = make_backend(PostgresBackend, location, key_prefix="shop")
    assert str(backend._address).startswith("direct:")
    assert backend.tables.locks == "my_locks"


def test_the_options_of_an_entry_may_be_paths_and_classes_of_the_driver():
    given = {"sslrootcert": Path("/etc/ca.pem"), "cursor_factory": ClientCursor}
    location = read(database={**DATABASE, "OPTIONS": given})
    backend = make_backend(PostgresBackend, location, key_prefix="shop")
    assert b"sslrootcert=/etc/ca.pem" in backend._address.conninfos[0]


@pytest.mark.parametrize(
    ("given", "setting"),
    [
        ({"location": "redis://127.0.0.1"}, "LOCATION"),
        ({"location": None}, "LOCATION"),
        ({"cache": {}}, "CACHE"),
        ({"database": {"ENGINE": "django.db.backends.sqlite3"}}, "DATABASE"),
        ({"database": ["postgresql"]}, "DATABASE"),
        ({"database": {**DATABASE, "OPTIONS": 7}}, "DATABASE"),
        ({"database": DATABASE, "options": {"sslmoed": "x"}}, "OPTIONS"),
        (
            {"location": "postgresql://x/y", "options": {"locks_table": "syncguard_locks"}},
            "OPTIONS",
        ),
    ],
    ids=repr,
)
def test_a_setting_that_cannot_be_used_is_named(given, setting):
    problem = read(**given)
    assert isinstance(problem, SettingProblem)
    assert problem.setting == setting
    assert "hunter2" not in problem.expected


@pytest.mark.parametrize(
    ("url", "kinds"),
    [
        ("postgresql://127.0.0.1/x", []),
        ("postgresql:///x", []),
        ("postgresql://localhost/x", []),
        ("postgresql://db.example/x", ["plaintext"]),
        ("postgresql://db.example/x?sslmode=prefer", ["plaintext"]),
        ("postgresql://db.example/x?sslmode=verify-full", []),
    ],
)
def test_a_remote_server_needs_tls(url, kinds):
    assert [finding.kind for finding in read(location=url).findings] == kinds


def test_a_page_waits_two_seconds_at_most():
    assert read(location="postgresql://x/y").quick.options["timeout_ms"] == 2_000
    given = {"location": "postgresql://x/y", "options": {"timeout_ms": 500}}
    assert read(**given).quick.options["timeout_ms"] == 500


def test_a_missing_driver_is_named_with_what_to_install():
    code = """
import sys
sys.modules["psycopg"] = None
from syncguard.backends import from_url, async_from_url
for make in (from_url, async_from_url):
    try:
        make("postgresql://127.0.0.1/x")
    except Exception as error:
        print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("InvalidArgument")
        assert 'needs the package psycopg: pip install "syncguard[postgres]"' in line
