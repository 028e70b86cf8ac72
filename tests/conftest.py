"""For every test: the fixtures that SyncGuard publishes for its users, and the search for leaks."""

from __future__ import annotations

import signal

import pytest


def pytest_configure(config: pytest.Config) -> None:
    # A run in the background may have inherited that Ctrl-C is ignored, and so would the programs
    # that tests start and stop with it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Pytest finds the plugin by the entry point of the installed package. In a checkout that is
    # not installed there is none.
    if not config.pluginmanager.has_plugin("syncguard"):
        config.pluginmanager.import_plugin("syncguard.testing.plugin")
    config.pluginmanager.import_plugin("leak_check")
