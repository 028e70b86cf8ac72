"""For every test: the public fixtures of SyncGuard, and the check for leaked resources."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# A busy machine makes examples slow, and is no reason to fail. A fixture for all examples of a test
# is what these tests want.
settings.register_profile(
    "syncguard",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("syncguard")


def pytest_configure(config: pytest.Config) -> None:
    # A process that was started in the background may ignore SIGINT. The programs that tests start
    # and stop with SIGINT would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Pytest finds the plugin by the entry point of the installed package. A checkout that is not
    # installed has no entry point.
    if not config.pluginmanager.has_plugin("syncguard"):
        config.pluginmanager.import_plugin("syncguard.testing.plugin")
    config.pluginmanager.import_plugin("leak_check")


@pytest.fixture(autouse=True)
def wake_ups_outlive_a_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let wake-ups live for minutes: a busy machine may pause a process for the usual 2 s."""
    for name, attribute, patient in (
        ("script_calls", "_WAKE_TTL", "600000"),
        ("wake_listener", "PASS_ON_S", 60.0),
        ("wake_listener_async", "PASS_ON_S", 60.0),
    ):
        module = sys.modules.get(f"syncguard.redis.{name}")
        if module is not None:
            monkeypatch.setattr(module, attribute, patient)


@pytest.fixture(autouse=True)
def no_undos_of_another_test() -> Iterator[None]:
    """Drop the undos that a test leaves: their server may be used by the next test, or be gone."""
    yield
    module = sys.modules.get("syncguard.redis.undo_thread")
    if module is not None:
        module.undo_thread.drop_jobs()
