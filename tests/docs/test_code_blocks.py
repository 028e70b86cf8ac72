"""Every code block of the documentation is executed, type-checked, or held to what it claims."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import pytest
from pages import CATEGORIES, ROOT, SHELL, Block, blocks, blocks_of, name_of, pages
from shop_project import ADDRESS
from wait_until import TTL_MS, wait_until_extended

import syncguard
from syncguard import Acquisition
from syncguard.backends import GROUP
from syncguard.redis import RedisBackend, inspect_server
from syncguard.testing import RedisServer

HERE = Path(__file__).parent
SITE = HERE / "shopsite"
PACKAGES = Path(syncguard.__file__).parents[1]
"""Where SyncGuard is imported from: installed, or this checkout."""

PYTHON_CATEGORIES = {"run", "postgres", "pytest", "types", "file"}
SHELL_CATEGORIES = {"install", "tox", "manage", "project", "worker"}

INSTALLERS = (
    "python3 -m venv ",
    ".venv/bin/pip install ",
    ". .venv/bin/activate",
    "sudo apt install ",
)


def of_category(category: str) -> list[object]:
    found = [block for page in pages() for block in blocks_of(category, page)]
    return [pytest.param(block, id=str(block)) for block in found]


def pages_with(category: str) -> list[object]:
    found = [page for page in pages() if blocks_of(category, page)]
    return [pytest.param(page, id=name_of(page)) for page in found]


@pytest.fixture
def environment(tmp_path, syncguard_redis) -> dict[str, str]:
    """For programs that run in the shop, on an empty Redis."""
    packages = [] if PACKAGES != ROOT else [str(ROOT)]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(SITE), *packages]),
        "DJANGO_SETTINGS_MODULE": "shop.settings",
        "SHOP_REDIS_URL": syncguard_redis.url,
        "SHOP_DATABASE": str(tmp_path / "shop.sqlite3"),
    }


def run(command: list[str], environment: dict[str, str], folder: Path) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_block_says_how_it_is_tested(page):
    for block in blocks(page):
        assert block.category in CATEGORIES, f"{block} does not say how it is tested"


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_block_is_tested_as_its_language_can_be(page):
    for block in blocks(page):
        if block.language == "python":
            assert block.category in PYTHON_CATEGORIES, block
        elif block.language in SHELL:
            assert block.category in SHELL_CATEGORIES, block
        else:
            assert block.category in CATEGORIES.keys() - PYTHON_CATEGORIES - SHELL_CATEGORIES, block


@pytest.mark.parametrize("page", pages_with("run"))
def test_the_examples_of_a_page_run(page, environment, tmp_path):
    run([sys.executable, str(HERE / "run_page.py"), str(page)], environment, tmp_path)


@pytest.mark.parametrize("block", of_category("pytest"))
def test_an_example_of_a_test_passes(block: Block, environment, tmp_path):
    test = tmp_path / "test_example.py"
    test.write_text(block.text)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    installed = "syncguard" in {entry.name for entry in metadata.entry_points(group="pytest11")}
    plugin = [] if installed else ["-p", "syncguard.testing.plugin"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, str(test)]
    assert " passed" in run(command, environment, tmp_path)


def test_the_examples_that_are_not_run_have_the_right_types(tmp_path, environment):
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed here; the environment docs of tox has it")
    settings = tmp_path / "mypy.ini"
    settings.write_text(
        "[mypy]\nstrict = True\nplugins = mypy_django_plugin.main\n"
        f"mypy_path = {SITE}\n"
        "disallow_untyped_defs = False\ndisallow_untyped_calls = False\n"
        "disallow_incomplete_defs = False\ndisallow_untyped_decorators = False\n"
        "[mypy-shop.*]\nignore_errors = True\n"
        "[mypy.plugins.django-stubs]\ndjango_settings_module = shop.settings\n"
    )
    files = []
    for page in pages():
        for block in blocks_of("types", page):
            name = re.sub(r"\W", "_", str(block))
            file = tmp_path / f"{name}.py"
            file.write_text("\n" * (block.line - 1) + block.text)
            files.append(str(file))
    command = [sys.executable, "-m", "mypy", "--config-file", str(settings), *files]
    if PACKAGES == ROOT:  # otherwise it is installed, and mypy finds it by itself
        environment["MYPYPATH"] = str(ROOT)
    run([*command, "--cache-dir", str(tmp_path / "cache")], environment, tmp_path)


@pytest.mark.parametrize("block", of_category("manage"))
def test_a_command_of_manage_py_works(block: Block, environment, tmp_path, syncguard_redis):
    """While somebody holds the lock of the invoice that the pages talk of."""
    manage = [sys.executable, str(SITE / "manage.py")]
    run([*manage, "migrate", "--run-syncdb", "-v", "0"], environment, tmp_path)
    with RedisBackend.from_url(syncguard_redis.url, key_prefix="shop") as backend:
        backend.acquire("invoice:42", 600_000, holder="shop.tasks.settle[c1f5]@web1")
    for line in block.text.splitlines():
        program, script, *words = shlex.split(line, comments=True)
        assert (program, script) == ("python", "manage.py"), f"{block}: {line}"
        run([*manage, *words], environment, tmp_path)


@pytest.mark.parametrize("block", of_category("install"))
def test_installing_goes_into_a_virtual_environment(block: Block):
    for line in block.text.splitlines():
        assert line.startswith(INSTALLERS), f"{block}: {line}"


@pytest.mark.parametrize("block", of_category("tox"))
def test_the_tox_environments_exist(block: Block):
    known = set(re.findall(r"^\[testenv:(\w+)\]$", (ROOT / "tox.ini").read_text(), re.MULTILINE))
    for name in re.findall(r"tox run -e ([\w,]+)", block.text):
        assert set(name.split(",")) <= known, f"{block}: {name}"


@pytest.mark.parametrize("block", of_category("redis.conf"))
def test_a_redis_with_this_configuration_is_fit_for_locks(block: Block):
    lines = [line for line in block.text.splitlines() if line and not line.startswith("#")]
    with RedisServer(config=lines) as server, RedisBackend.from_url(server.url) as backend:
        assert inspect_server(backend).findings == ()


@pytest.mark.parametrize("block", of_category("entry-point"))
def test_an_entry_point_is_in_the_group_that_is_read(block: Block):
    assert f'[project.entry-points."{GROUP}"]' in block.text


@pytest.mark.parametrize("block", of_category("redis.acl"))
def test_a_user_with_these_rights_can_do_all_that_locks_need(block: Block):
    user, password = re.search(r"user (\S+) on >(\S+) ", block.text).groups()
    with RedisServer(config=[block.text.strip()]) as server:
        url = server.url.replace("redis://", f"redis://{user}:{password}@")
        with RedisBackend.from_url(url, key_prefix="shop", fence_floor="clock") as backend:
            with ThreadPoolExecutor() as threads:
                with syncguard.lock(backend, "invoice:42", TTL_MS, auto_extend=True) as held:
                    waiting = threads.submit(take, backend, "invoice:42")
                    wait_until_extended(held)
                    assert [info.holder for info in backend.live_locks()] == [None]
                assert waiting.result() == "taken"
            assert not backend.is_locked("invoice:42")
            assert backend.count_fence_counters() == 1
            assert inspect_server(backend).rdb is None


def take(backend: RedisBackend, key: str) -> str:
    with backend.lock(key, acquisition=Acquisition(timeout_ms=60_000)):
        return "taken"


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_one_address_of_redis_is_used_everywhere(page):
    for block in blocks(page):
        if block.category in ("run", "file", "project"):
            assert "redis://127.0.0.1" not in block.text.replace(ADDRESS, ""), block
