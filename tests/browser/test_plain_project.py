"""A project with one alias and only an address: every page and every command works."""

from __future__ import annotations

import io
import json
import time

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command

from syncguard_django import lock, locks

By = pytest.importorskip(
    "selenium.webdriver.common.by", reason="the admin page in a browser: tox run -e browser"
).By

KEY = "invoice:42"


@pytest.fixture
def project(site, settings, guarded_redis):
    """The site with the smallest possible setting."""
    settings.SYNCGUARD = {"default": {"LOCATION": guarded_redis.url}}
    User.objects.create_superuser("root", password="root")
    return site


class Visitor:
    def __init__(self, driver):
        self.driver = driver

    def find(self, selector):
        deadline = time.monotonic() + 60
        while not (found := self.driver.find_elements(By.CSS_SELECTOR, selector)):
            assert time.monotonic() < deadline, self.driver.page_source
            time.sleep(0.05)
        return found[0]

    def text(self, selector):
        return self.find(selector).text

    def follow(self, selector, heading):
        """Click, and wait for the page with this heading."""
        self.find(selector).click()
        deadline = time.monotonic() + 60
        while self._heading() != heading:
            assert time.monotonic() < deadline, self.driver.page_source
            time.sleep(0.05)

    def _heading(self):
        try:
            return self.driver.find_element(By.CSS_SELECTOR, "#content h1").text
        except Exception:  # the page is still loading
            return None


def run(command, *arguments):
    out, err, code = io.StringIO(), io.StringIO(), 0
    try:
        call_command(command, *arguments, stdout=out, stderr=err)
    except SystemExit as ended:
        code = ended.code
    assert err.getvalue() == ""
    return out.getvalue(), code


def test_every_page_works_with_one_alias_and_the_defaults(project, chromium):
    chromium.delete_all_cookies()
    chromium.get(f"{project}/admin/")
    chromium.get_log("browser")
    page = Visitor(chromium)
    page.find("#id_username").send_keys("root")
    page.find("#id_password").send_keys("root")
    page.follow("input[type=submit]", "Site administration")
    page.follow("#content-main .model-lock a", "Locks")
    assert page.text(".syncguard-empty") == "No locks are held right now."
    with lock(KEY, ttl_ms=600_000, holder="me") as mine:
        page.find("#syncguard-find-key").send_keys(KEY)
        page.follow(".syncguard-find button", "Locks")
        found = f"The lock of that key is held: fence {int(mine.fence)}, holder me."
        assert page.text(".messagelist") == found
        shown = page.find(".syncguard-hash").get_attribute("title")
        assert shown == locks["default"].hash(KEY)
        found_at = chromium.current_url
        assert found_at.endswith(f"?using=default&q={shown}")
        page.follow(".syncguard-release", "Force-release a lock?")
        page.follow(".syncguard-no", "Locks")
        assert chromium.current_url == found_at
        page.follow(".syncguard-release", "Force-release a lock?")
    assert not locks["default"].is_locked(KEY)
    page.follow(".syncguard-yes", "Locks")
    assert page.text(".messagelist").startswith("Nothing was released: the holder that was shown")
    held = locks["default"].acquire(KEY, ttl_ms=600_000)
    chromium.get(f"{project}/admin/syncguard_django/lock/")
    page.follow(".syncguard-release", "Force-release a lock?")
    page.follow(".syncguard-yes", "Locks")
    assert page.text(".messagelist") == f"Released the lock {shown} (fence {int(held.fence)})."
    assert not held.release().ok
    page.follow(".breadcrumbs a", "Site administration")
    assert f"Released: {shown} (fence {int(held.fence)})" in page.text("#recent-actions-module")
    console_errors = [entry["message"] for entry in chromium.get_log("browser")]
    # The test site has no icon, and the browser may request one at any time.
    assert [text for text in console_errors if "favicon.ico" not in text] == []


@pytest.mark.usefixtures("project")
def test_every_command_works_with_one_alias_and_the_defaults():
    assert run("syncguard_status") == ("No live locks.\n", 0)
    locks["default"].acquire(KEY, ttl_ms=600_000, holder="me")
    shown = locks["default"].hash(KEY)
    assert shown in run("syncguard_status")[0]
    assert [row["keyHash"] for row in json.loads(run("syncguard_status", "--format=json")[0])] == [
        shown
    ]
    assert run("syncguard_status", "--count") == ("1\n", 0)
    out, code = run("syncguard_status", "--key", KEY)
    assert shown in out
    assert code == 0
    out, code = run("syncguard_status", "--check")
    assert out.startswith("default: healthy\n")
    assert code == 0
    out, code = run("syncguard_release", shown[:8], "--no-input", "--user", "root")
    assert out.endswith("Released.\n")
    assert code == 0
    assert run("syncguard_status", "--key", KEY)[1] == 1
    out, _ = run("syncguard_guard", "--forget", KEY, "--no-input")
    assert out.startswith("The guard has recorded no fence of key ")
