"""For every test: the public fixtures of SyncGuard, and the check for leaked resources."""

from __future__ import annotations

import signal

import pytest


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
