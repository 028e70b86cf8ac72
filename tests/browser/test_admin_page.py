"""The admin page in a real Chromium, under Content-Security-Policy: default-src 'self'."""

from __future__ import annotations

import re
import time

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from testsite.hashes import shown_hash

from syncguard_django import locks

By = pytest.importorskip(
    "selenium.webdriver.common.by", reason="the admin page in a browser: tox run -e browser"
).By

LIST = "/admin/syncguard_django/lock/"
PASSWORD = "hunter2-hunter2"
KEY = "patient:Eve:diagnosis"


class Page:
    """The page, used as a person uses it."""

    def __init__(self, driver, site):
        self.driver, self.site = driver, site

    def open(self, path=LIST):
        self.driver.get(self.site + path)
        return self

    def find(self, selector):
        """Wait for the element: after a click the next page may still be loading."""
        return self.wait_for(lambda: self.driver.find_elements(By.CSS_SELECTOR, selector))[0]

    def text(self, selector):
        return self.find(selector).text

    def all(self, selector):
        return [found.text for found in self.driver.find_elements(By.CSS_SELECTOR, selector)]

    def click(self, selector):
        self.find(selector).click()

    def type(self, selector, text):
        self.find(selector).send_keys(text)

    def wait_for(self, condition, seconds=20):
        deadline = time.monotonic() + seconds
        while True:
            try:
                found = condition()
            except Exception:  # a refresh replaced the element
                found = None
            if found:
                return found
            assert time.monotonic() < deadline, self.driver.page_source
            time.sleep(0.05)

    @property
    def rows(self):
        return self.all("#result_list td.field-key, #result_list th.field-key")


@pytest.fixture
def page(chromium, site):
    """The list, with an administrator signed in. At the end the console must have no errors."""
    User.objects.create_superuser("root", password=PASSWORD)
    chromium.delete_all_cookies()
    page = Page(chromium, site).open()
    page.type("#id_username", "root")
    page.type("#id_password", PASSWORD)
    page.click("input[type=submit]")
    page.wait_for(lambda: page.text("h1") == "Locks")
    chromium.execute_script("sessionStorage.clear(); localStorage.clear()")
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    page.open()
    chromium.get_log("browser")
    yield page
    assert chromium.get_log("browser") == []


@pytest.fixture
def held(site):  # noqa: ARG001 - an empty Redis
    """A lock on a key that must not be shown."""
    with locks["default"].acquire(KEY, ttl_ms=3_600_000, holder="ward-3") as held:
        yield held


@pytest.mark.usefixtures("held")
def test_live_locks_are_listed(page):
    locks["reports"].acquire("daily", ttl_ms=60_000, holder="cron")
    page.open()
    assert page.rows == [shown_hash("daily"), shown_hash(KEY)]
    assert page.all(".field-alias") == ["reports", "default"]
    assert page.all(".field-holder_label") == ["cron", "ward-3"]


def test_the_policy_forbids_inline_scripts(page):
    """The browser enforces the policy: it refuses inline scripts and reports them."""
    script = "const s = document.createElement('script'); s.textContent = 'window.ran = true';"
    page.driver.execute_script(f"{script} document.head.append(s)")
    assert page.driver.execute_script("return window.ran") is None
    [refusal] = page.driver.get_log("browser")
    assert "Content Security Policy" in refusal["message"]


@pytest.mark.usefixtures("held")
def test_the_countdown_runs(page):
    page.open()
    page.click("#syncguard-pause")
    before = page.text(".field-expires_in"), page.text(".field-held_for")
    assert re.fullmatch(r"59 min \d+ s", before[0])
    page.wait_for(lambda: page.text(".field-expires_in") != before[0])
    page.wait_for(lambda: page.text(".field-held_for") != before[1])


def test_a_lock_that_expires_while_it_is_shown_is_marked_expired(page):
    locks["default"].acquire("short", ttl_ms=10_000)
    page.open()
    page.click("#syncguard-pause")
    page.wait_for(lambda: page.text(".field-expires_in") == "expired")
    assert "expired" in page.find("#result_list tbody tr").get_attribute("class")


def test_the_list_refreshes_itself(page):
    assert page.text(".syncguard-empty") == "No locks are held right now."
    with locks["default"].acquire("later", ttl_ms=60_000):
        page.wait_for(lambda: page.rows == [shown_hash("later")])
        status = page.find("#syncguard-status")
        assert status.get_attribute("aria-live") == "polite"
        assert status.get_attribute("textContent") == "1 live lock"
    page.wait_for(lambda: page.all(".syncguard-empty"))


def test_the_refresh_can_be_paused_and_resumed(page):
    page.click("#syncguard-pause")
    assert page.text("#syncguard-pause") == "Resume refresh"
    assert page.text(".syncguard-updated") == "Refresh is paused"
    locks["default"].acquire("later", ttl_ms=60_000)
    time.sleep(6)  # longer than the interval of refreshes: nothing may change
    assert page.rows == []
    page.click("#syncguard-pause")
    page.wait_for(lambda: page.rows == [shown_hash("later")])


def test_a_pause_lasts_when_the_page_is_loaded_again(page):
    page.click("#syncguard-pause")
    page.open()
    assert page.text("#syncguard-pause") == "Resume refresh"


@pytest.mark.usefixtures("held")
def test_a_raw_key_is_found_and_is_never_in_an_address(page):
    locks["default"].acquire("other", ttl_ms=60_000)
    page.open()
    page.type("#syncguard-find-key", KEY)
    page.click(".syncguard-find button")
    page.wait_for(lambda: "q=" in page.driver.current_url)
    assert page.rows == [shown_hash(KEY)]
    assert "is held" in page.text(".messagelist")
    assert "Eve" not in page.driver.current_url
    assert "Eve" not in page.driver.page_source


def test_a_lock_is_released_through_the_confirmation(page, held):
    page.open()
    page.click(".syncguard-release")
    page.wait_for(lambda: page.text("h1") == "Force-release a lock?")
    facts = page.text(".syncguard-facts")
    assert shown_hash(KEY) in facts
    assert page.find(".syncguard-fence").get_attribute("title") == held.fence
    page.click(".syncguard-yes")
    page.wait_for(lambda: page.all(".messagelist"))
    assert page.text(".messagelist").startswith("Released the lock")
    assert not locks["default"].is_locked(KEY)
    assert LogEntry.objects.get().change_message.startswith("Force-released: ")


@pytest.mark.usefixtures("held")
def test_going_back_from_the_confirmation_releases_nothing(page):
    page.open()
    page.click(".syncguard-release")
    page.click(".syncguard-no")
    page.wait_for(lambda: page.text("h1") == "Locks")
    assert locks["default"].is_locked(KEY)


def colours(page, *selectors):
    script = "return getComputedStyle(document.querySelector(arguments[0])).backgroundColor"
    return [page.driver.execute_script(script, selector) for selector in selectors]


def hold_some(prefix):
    for n, holder in enumerate(("billing.settle", "feeds.import_feed", "reports.nightly")):
        label = f"{holder}[{n}f0c2a7e]@worker-{n + 1}"
        locks[prefix].acquire(f"{holder}:{n}", ttl_ms=20_000 + 40_000 * n, holder=label)


def test_dark_mode_is_dark(page, photograph):
    hold_some("default")
    page.driver.set_window_size(1800, 620)
    page.open()
    photograph("admin.png")
    light = colours(page, "body", ".syncguard-tools")
    dark_scheme = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", dark_scheme)
    page.open()
    for before, after in zip(light, colours(page, "body", ".syncguard-tools"), strict=True):
        assert sum(map(int, re.findall(r"\d+", after)[:3])) < 200
        assert before != after
    photograph("admin-dark.png")
    page.driver.set_window_size(1400, 900)


@pytest.mark.usefixtures("held")
def test_the_page_reports_a_dead_redis_and_recovers(page, guarded_redis):
    page.open()
    guarded_redis.kill()
    page.wait_for(lambda: page.all(".syncguard-down"))
    assert "ServiceUnavailable" in page.text(".syncguard-down")
    guarded_redis.restart()
    page.wait_for(lambda: page.all(".syncguard-empty"))


def test_the_holder_column_has_a_minimum_width(page):
    """With two aliases the table shares 1280 pixels with the navigation and the filter."""
    hold_some("default")
    narrow(page.driver, 1280)
    try:
        page.open()
        lines = """
        const range = document.createRange();
        range.selectNodeContents(document.querySelector(".field-holder_label .syncguard-value"));
        return new Set([...range.getClientRects()].map(line => line.top)).size;
        """
        assert page.driver.execute_script(lines) <= 2
        assert page.text(".field-holder_label") == "billing.settle[0f0c2a7e]@worker-1"
        release = page.find(".syncguard-release").rect
        assert release["x"] + release["width"] <= 1280
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_every_refresh_updates_the_number_of_results(page):
    locks["default"].acquire("other", ttl_ms=600_000, holder="somebody")
    with locks["default"].acquire("mine", ttl_ms=600_000, holder="ward-3"):
        page.open(f"{LIST}?q=ward")
        assert page.text("#changelist-search .quiet") == "1 result (2 total)"
    page.wait_for(lambda: page.text("#changelist-search .quiet") == "0 results (1 total)")


def narrow(driver, width):
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def test_on_a_phone_each_lock_is_a_card(page):
    hold_some("default")
    locks["default"].acquire("long", ttl_ms=900_000, holder="x" * 200)
    narrow(page.driver, 400)
    try:
        page.open()
        overflow = "return document.documentElement.scrollWidth - innerWidth"
        assert page.driver.execute_script(overflow) <= 0
        labels = page.all("#result_list tbody tr:first-child .syncguard-label")
        assert [label.lower() for label in labels] == [
            *("key hash", "alias", "holder", "expires in", "held for", "fence")
        ]
        assert not page.find("#result_list thead").is_displayed()
        cells = "return [...document.querySelectorAll('#result_list tbody tr:first-child td')]"
        lefts = f"{cells}.map(cell => cell.getBoundingClientRect().left)"
        assert len(set(page.driver.execute_script(lefts))) == 1, "one below the other"
        for target in (".syncguard-release", "#syncguard-pause", ".syncguard-find button"):
            assert page.find(target).size["height"] >= 36, f"{target} is hard to hit"
        page.click(".syncguard-release")
        page.wait_for(lambda: page.text("h1") == "Force-release a lock?")
        assert page.driver.execute_script(overflow) <= 0
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.usefixtures("held")
def test_release_pages_keep_the_filters_of_the_list(page):
    for way_back in (".syncguard-no", ".breadcrumbs a[href*=lock]"):
        page.open(f"{LIST}?using=default&q=ward&o=-3")
        page.click(".syncguard-release")
        page.click(way_back)
        page.wait_for(lambda: page.text("h1") == "Locks")
        assert page.driver.current_url.endswith(f"{LIST}?using=default&q=ward&o=-3")


def test_a_dead_redis_has_an_unknown_number_of_locks(page, guarded_redis):
    guarded_redis.kill()
    page.open()
    assert page.text("#syncguard-pages") == "The number of locks is unknown"
    status = page.find("#syncguard-status")
    assert status.get_attribute("textContent") == "The number of locks is unknown"


def test_the_page_says_when_the_session_has_ended(page):
    page.driver.delete_all_cookies()
    page.wait_for(
        lambda: page.text(".syncguard-updated") == "You are signed out. Load the page again."
    )


def test_the_sidebar_and_the_filter_are_djangos_own(page):
    page.open(f"{LIST}?using=reports")
    assert page.find("#nav-sidebar .model-lock a")
    assert "By alias" in page.text("#changelist-filter")


def test_neither_the_log_nor_the_pages_contain_a_secret(page, held, access_log):
    page.open()
    page.type("#syncguard-find-key", KEY)
    page.click(".syncguard-find button")
    page.wait_for(lambda: "q=" in page.driver.current_url)
    sources = [page.driver.page_source]
    page.click(".syncguard-release")
    page.wait_for(lambda: page.text("h1") == "Force-release a lock?")
    sources.append(page.driver.page_source)
    log = "\n".join(access_log)
    assert '"POST /admin/syncguard_django/lock/find/ HTTP/1.1" 302' in log
    assert f"q={shown_hash(KEY)}" in log
    for secret in (KEY, "Eve", held.lock_id, PASSWORD):
        assert secret not in log
        assert not [source for source in sources if secret in source]
