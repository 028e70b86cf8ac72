"""What the library catches and only logs is a violation, if it tells of a mistake."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from history import library_log
from history.checker import check
from history.library_log import judge_the_log
from history.log import Log, read
from history.observer import Observer

_logger = logging.getLogger("syncguard")


@pytest.fixture
def rules_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The rules that the process of this test has broken by what it logged."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(_logger, "handlers", [])
    log = Log(tmp_path / "worker.jsonl")
    judge_the_log(Observer(log, "worker"))
    yield lambda: [violation.rule for violation in check(read(tmp_path))]
    log.close()


def test_an_error_that_the_library_caught_is_found(rules_broken):
    try:
        raise RuntimeError
    except RuntimeError:
        _logger.exception("Unexpected error in the heartbeat thread; continuing.")
    assert rules_broken() == ["no foreign exception"]


@pytest.mark.parametrize("text", library_log._MISTAKES)
def test_a_mistake_that_is_logged_without_its_error_is_found(rules_broken, text):
    _logger.error(text, *["ValueError"] * text.count("%s"))
    assert rules_broken() == ["no foreign exception"]


@pytest.mark.parametrize("text", library_log._MISTAKES)
def test_the_library_logs_these_texts(text):
    package = Path(library_log.__file__).parents[3] / "syncguard"
    assert any(f'"{text}"' in path.read_text() for path in package.rglob("*.py"))


def test_a_fault_that_is_logged_breaks_no_rule(rules_broken):
    _logger.error("Could not release a lock at the end of a %s block (%s: %s).", "lock", "x", "y")
    _logger.warning("Could not extend locks; retrying.")
    assert rules_broken() == []
