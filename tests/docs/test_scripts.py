"""The scripts that pages print, run as programs: cron jobs, and processes that are stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pages import DOCS, blocks_of
from shop_project import ADDRESS

from syncguard.redis import RedisBackend


@pytest.fixture
def script(tmp_path, syncguard_redis):
    """Writes the file that a page prints, and returns the command that runs it."""

    def write(page: str) -> list[str]:
        (block,) = blocks_of("file", DOCS / "how-to" / page)
        text = block.text.replace(ADDRESS, syncguard_redis.url.removesuffix("0"))
        path = Path(tmp_path) / block.words[1]
        path.write_text(text)
        return [sys.executable, str(path)]

    return write


@pytest.fixture
def backend(syncguard_redis):
    with RedisBackend.from_url(syncguard_redis.url, key_prefix="shop") as backend:
        yield backend


def test_the_second_run_of_a_cron_job_ends_with_one_line_and_its_exit_code(script, backend):
    command = script("cron.md")
    first, second = (
        subprocess.run(command, capture_output=True, text=True, timeout=900) for _ in range(2)
    )
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout == "nightly: working with fence 000000000000001\n"
    assert backend.is_locked("cron:nightly"), "the other machines may be late"
    assert (second.returncode, second.stdout) == (75, "")
    assert second.stderr == "nightly: another run holds the lock; nothing to do\n"


def test_a_process_that_gets_sigterm_releases_its_lock(script, backend):
    with subprocess.Popen(script("sigterm.md"), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "working\n"
        assert backend.is_locked("import:acme")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    assert not backend.is_locked("import:acme")
