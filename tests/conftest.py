"""What every test has at hand: the fixtures that SyncGuard publishes for its users."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    # Pytest finds the plugin by the entry point of the installed package. In a checkout that is
    # not installed there is none.
    if not config.pluginmanager.has_plugin("syncguard"):
        config.pluginmanager.import_plugin("syncguard.testing.plugin")
