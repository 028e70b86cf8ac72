"""A model without a table does not break code that reads all models."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection

from syncguard_django.models import FenceMark, Lock

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("arguments", [(), ("--all",), ("syncguard_django",)])
def test_dumpdata_works(arguments):
    out = io.StringIO()
    call_command("dumpdata", *arguments, stdout=out)
    assert not [row for row in json.loads(out.getvalue()) if row["model"].endswith(".lock")]


def test_no_migration_is_missing():
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)


def test_only_the_marks_have_a_table():
    tables = connection.introspection.table_names()
    assert FenceMark._meta.db_table in tables
    assert Lock._meta.db_table not in tables


def test_no_manager_queries_the_database(django_assert_num_queries):
    with django_assert_num_queries(0):
        assert list(Lock.objects.all()) == []
        assert Lock._base_manager.count() == 0
        assert not Lock._default_manager.filter(fence="1").exists()


def test_a_lock_is_named_by_its_hash_and_fence():
    assert str(Lock(key_hash="abc", fence="000000000000007")) == "abc (fence 000000000000007)"


def test_the_admin_index_works(admin_client):
    assert admin_client.get("/admin/").status_code == 200
    assert admin_client.get("/admin/syncguard_django/").status_code == 200


def test_starting_django_opens_no_connection():
    """Import, ready() and the checks, in a process where any connection is an error."""
    script = (
        "import socket\n"
        "def refuse(*_): raise AssertionError('connected')\n"
        "socket.socket.connect = refuse\n"
        "import django, os\n"
        "django.setup()\n"
        "from django.core.management import call_command\n"
        "import syncguard_django, syncguard_django.fencing, syncguard_django.signals\n"
        "call_command('check', deploy=True, tags=['syncguard'])\n"
        "print('quiet')\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        env={"DJANGO_SETTINGS_MODULE": "testsite.settings", "PYTHONPATH": _path()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout.endswith("quiet\n"), run.stderr


def test_a_missing_client_package_is_a_check_and_not_a_crash():
    script = (
        "import sys\n"
        "sys.modules['redis'] = None\n"
        "import django; django.setup()\n"
        "from django.core.checks import run_checks\n"
        "print([message.id for message in run_checks(tags=['syncguard'])])\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        env={"DJANGO_SETTINGS_MODULE": "testsite.settings", "PYTHONPATH": _path()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout == "['syncguard.E005']\n", run.stderr


def _path():
    import syncguard

    return f"{Path(__file__).parent}:{Path(syncguard.__file__).parents[1]}"
