"""The landing page of the example in a real Chromium: every button, and its result.

``SYNCGUARD_SCREENSHOTS=docs/images`` writes the screenshots of the documentation.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

By = pytest.importorskip(
    "selenium.webdriver.common.by", reason="the demo in a browser: tox run -e browser"
).By

ROOT = Path(__file__).parents[2]
PATIENCE_S = 200


@pytest.fixture(scope="module")
def demo_output():
    """The output of the demo, started as a user starts it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "example_project.demo", "--port", "0"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    alarm = threading.Timer(PATIENCE_S, process.terminate)
    alarm.start()
    try:
        output = ""
        for line in process.stdout:
            output += line
            if "Ctrl-C stops everything" in line:
                break
        else:
            pytest.fail(f"the demo did not start:\n{output}")
        alarm.cancel()
        yield output
    finally:
        alarm.cancel()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


@pytest.fixture(scope="module")
def address(demo_output):
    return re.search(r"The demo is running: +(\S+)", demo_output)[1]


class Page:
    """The landing page, used as a person uses it."""

    def __init__(self, driver, address):
        self.driver = driver
        driver.get(address)

    def find(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def texts(self, selector):
        """The current texts, read in one call: the script replaces the elements all the time."""
        script = "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)"
        return self.driver.execute_script(script, selector)

    def wait_for(self, condition):
        deadline = time.monotonic() + PATIENCE_S
        while not (found := condition()):
            assert time.monotonic() < deadline, self.texts("main")
            time.sleep(0.05)
        return found

    def play(self, kind):
        """Click a button, and wait until its scene has ended."""
        played = len(self.texts("#history button"))
        button = self.find(f"form[data-kind={kind}] button")
        self.wait_for(button.is_enabled)
        button.click()
        self.wait_for(lambda: len(self.texts("#history button")) == played + 1)
        self.wait_for(lambda: self.texts("#verdict") != ["playing"])
        assert self.texts("#verdict") == ["as it should be"], self.texts("#steps li")
        return " ".join(self.texts("#steps li"))

    def prefer(self, scheme):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def console_errors(self):
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture(scope="module")
def page(chromium, address, photograph):
    page = Page(chromium, address)
    page.photograph = photograph
    page.console_errors()  # those of earlier tests
    yield page
    page.prefer("")


def test_the_first_page_shows_no_error(page):
    """Before the first scene: the page has loaded the state, and shows no error."""
    page.wait_for(lambda: page.texts("#timeline .lane"))
    state = "return fetch(document.body.dataset.state).then(response => response.json())"
    assert page.driver.execute_script(state)["scene"] is None
    refreshed = "return performance.getEntriesByType('resource').filter(e => /state/.test(e.name))"
    page.wait_for(lambda: len(page.driver.execute_script(refreshed)) > 2)
    assert page.texts("#refusal") == [""]
    assert page.find("#hint").is_displayed()
    assert page.find("form[data-kind=settle] button").is_enabled()
    assert page.texts("#shown") == ["Nothing has happened yet"]
    assert page.console_errors() == []


def test_twenty_tasks_settle_an_invoice_once(page):
    story = page.play("settle")
    assert "settled exactly once" in story
    fences = [text for text in page.texts("#timeline title") if "held the lock" in text]
    assert len(fences) == 20


def test_the_same_feed_is_queued_once_and_duplicates_are_returned(page):
    assert "One task was queued" in page.play("feed")
    assert "4 duplicates returned" in page.texts("#timeline text.dup-text")


def test_a_report_is_written_by_one_machine(page):
    assert "written exactly once" in page.play("report")
    assert page.texts("#timeline .ghost title")


def test_with_a_hanging_redis_the_lock_is_lost_and_the_holder_notices(page):
    assert "LockLost" in page.play("pause")
    assert "LockLost" in page.texts("#timeline text.burst-text")
    assert page.texts("#timeline text.band-text") == ["Redis is silent"]


def test_a_killed_workers_late_write_is_refused(page):
    assert "refused: StaleFence" in page.play("kill")
    assert page.texts("#timeline text.burst-text") == [
        "kill -9",
        "late write refused: StaleFence",
    ]


def test_an_earlier_scene_can_be_shown_again(page):
    page.find("#history li:last-child button").click()
    page.wait_for(lambda: page.texts("#shown")[0].startswith("One invoice"))
    page.find("#history li:first-child button").click()
    page.wait_for(lambda: page.texts("#shown")[0].startswith("A killed worker"))


def test_light_and_dark_have_different_backgrounds(page):
    backgrounds = set()
    for scheme, name in (("light", "landing.png"), ("dark", "landing-dark.png")):
        page.prefer(scheme)
        script = "return getComputedStyle(document.body).backgroundColor"
        backgrounds.add(page.driver.execute_script(script))
        page.photograph(name)
    assert len(backgrounds) == 2


def test_a_narrow_screen_needs_no_sideways_scrolling(page):
    metrics = {"width": 380, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        overflow = "return document.documentElement.scrollWidth - innerWidth"
        page.wait_for(lambda: page.driver.execute_script(overflow) <= 0)
        cut = "return [...document.querySelectorAll('.columns > section')]"
        cut += ".map(section => section.scrollWidth - section.clientWidth)"
        assert max(page.driver.execute_script(cut)) <= 0, "a table is cut off"
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_on_a_narrow_screen_the_end_of_a_scene_is_visible(page):
    metrics = {"width": 380, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    beside = """
    const [frame, note] = [".picture", "#timeline text.filed-text"].map(
      selector => document.querySelector(selector)?.getBoundingClientRect());
    return note ? frame.right - note.right : null;
    """
    try:
        page.play("settle")
        page.wait_for(lambda: page.driver.execute_script(beside) is not None)
        page.wait_for(lambda: page.driver.execute_script(beside) >= 0)
        edge = "return document.querySelector('.picture').classList.contains('more')"
        page.wait_for(lambda: not page.driver.execute_script(edge))
        page.driver.execute_script("document.querySelector('.picture').scrollLeft = 0")
        page.wait_for(lambda: page.driver.execute_script(edge))
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_timeline_scrolls_into_view_when_a_scene_starts(page):
    metrics = {"width": 1280, "height": 500, "deviceScaleFactor": 1, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    top = "return document.querySelector('.stage').getBoundingClientRect().top / innerHeight"
    try:
        page.driver.execute_script("scrollTo(0, 0)")
        assert page.driver.execute_script(top) > 1
        page.play("report")
        page.wait_for(lambda: 0 <= page.driver.execute_script(top) < 0.5)
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_every_button_says_what_it_does(page):
    script = "return [...document.querySelectorAll('button')].filter(b => !b.textContent.trim())"
    assert page.driver.execute_script(script) == []
    assert page.find("#steps").get_attribute("aria-live") == "polite"


def test_the_printed_password_opens_the_page_of_locks(page, demo_output):
    where = re.search(r"The locks in the admin: +(\S+)", demo_output)[1]
    user, password = re.search(r"log in as (\S+) with the password (\S+)", demo_output).groups()
    page.driver.get(where)
    page.find("#id_username").send_keys(user)
    page.find("#id_password").send_keys(password)
    page.find("[type=submit]").click()
    page.wait_for(lambda: "syncguard_django/lock" in page.driver.current_url)
    assert "lock" in page.driver.title.lower()


def test_nothing_was_refused_or_failed(page):
    assert page.console_errors() == []


def test_the_policy_forbids_inline_scripts_and_styles(address):
    for path in ("", "state", "admin/login/", "static/story/landing.js"):
        with urllib.request.urlopen(address + path, timeout=60) as response:  # noqa: S310
            policy = response.headers.get("Content-Security-Policy", "")
            if not path.startswith("static/"):
                assert policy.startswith("default-src 'self'")
    with urllib.request.urlopen(address + "state", timeout=60) as response:  # noqa: S310
        assert not json.load(response)["playing"]
