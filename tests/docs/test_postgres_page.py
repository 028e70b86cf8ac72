"""The page about PostgreSQL: its settings are put into the shop, whose examples then run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pages import DOCS, blocks_of

PAGE = DOCS / "how-to" / "postgres.md"
HERE = Path(__file__).parent

SETTINGS = """\
from shop.settings import *

DATABASES = {{"default": {{"ENGINE": "django.db.backends.postgresql", **{address!r}}}}}
"""


def test_the_page_runs_in_a_shop_with_its_settings(tmp_path, syncguard_postgres_server):
    server = syncguard_postgres_server
    address = {"HOST": server.host, "PORT": server.port, "USER": server.user}
    with server.connect(autocommit=True) as connection:
        connection.execute("CREATE DATABASE shop")
    (printed,) = (block.text for block in blocks_of("file", PAGE))
    settings = SETTINGS.format(address={**address, "NAME": "shop"}) + printed
    (tmp_path / "postgres_shop.py").write_text(settings)
    run = subprocess.run(
        [sys.executable, str(HERE / "run_page.py"), str(PAGE), "postgres"],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tmp_path), str(HERE / "shopsite"), str(HERE)]),
            "DJANGO_SETTINGS_MODULE": "postgres_shop",
        },
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "refused: somebody else has the lock" in run.stdout
