"""Fixtures: a headless Chromium, a site, and the site's access log."""

from __future__ import annotations

import base64
import importlib.util
import logging
import os
from pathlib import Path

import pytest
from django.core.servers.basehttp import WSGIRequestHandler
from django.test import testcases

from syncguard.testing import RedisServer

PASSWORD = "hunter2-hunter2"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Keep the tests of the demo in their order: each continues where the one before stopped."""
    places = [place for place, item in enumerate(items) if item.path.name == "test_demo.py"]
    visit = sorted((items[place] for place in places), key=lambda item: item.reportinfo()[1])
    for place, item in zip(places, visit, strict=True):
        items[place] = item


def _chromium():
    # In the folder of this file, but not importable: pytest does not add it to sys.path.
    spec = importlib.util.spec_from_file_location("chromium", Path(__file__).parent / "chromium.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def chromium(tmp_path_factory, access_log, live_server):  # noqa: ARG001 - it leaves before they do
    """The browser. Skips the test with a reason if there is none."""
    webdriver = pytest.importorskip(
        "selenium.webdriver", reason="the admin page in a browser: tox run -e browser"
    )
    tools = _chromium()
    found = tools.find()
    if found is None:
        pytest.skip(f"the admin page in a browser: no Chromium here; {tools.HOW_TO_INSTALL}")
    options = webdriver.ChromeOptions()
    options.binary_location = found[0]
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-dev-shm-usage",
        "--disable-sync",
        "--no-first-run",
        "--window-size=1400,900",
        f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(found[1]))
    yield driver
    driver.quit()


@pytest.fixture(scope="session")
def photograph(chromium):
    """Saves screenshots of whole pages in the folder ``SYNCGUARD_SCREENSHOTS``."""
    folder = os.environ.get("SYNCGUARD_SCREENSHOTS")

    def take(name):
        if not folder:
            return
        into = Path(__file__).parents[2] / folder
        into.mkdir(parents=True, exist_ok=True)
        size = chromium.execute_script(
            "return [document.body.scrollWidth, document.body.scrollHeight]"
        )
        clip = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
        picture = chromium.execute_cdp_cmd(
            "Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True}
        )
        (into / name).write_bytes(base64.b64decode(picture["data"]))

    return take


@pytest.fixture(scope="session")
def access_log():
    """Every line that the site's server logs."""
    lines = []

    class Collector(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())

    logger = logging.getLogger("django.server")
    handlers, logger.handlers = logger.handlers, [Collector()]
    with pytest.MonkeyPatch.context() as patch:
        # The live server of the tests writes no log; this is the handler of runserver.
        patch.setattr(testcases, "QuietWSGIRequestHandler", WSGIRequestHandler)
        yield lines
    logger.handlers = handlers


@pytest.fixture(scope="session")
def guarded_redis():
    with RedisServer(password=PASSWORD) as server:
        yield server


@pytest.fixture
def site(access_log, live_server, settings, guarded_redis):  # noqa: ARG001 - the log comes first
    """The address of the site; its Redis is empty and has a password."""
    if not guarded_redis.is_running:
        guarded_redis.restart()
    with guarded_redis.client() as client:
        client.flushall()
    settings.SYNCGUARD = {
        "default": {"LOCATION": guarded_redis.url, "KEY_PREFIX": "shop"},
        "reports": {"LOCATION": guarded_redis.url, "KEY_PREFIX": "reports"},
    }
    return live_server.url
