"""The page of locks under other themes of the admin: fields and buttons can be read and used."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from syncguard.redis import RedisBackend

By = pytest.importorskip(
    "selenium.webdriver.common.by", reason="the admin page in a browser: tox run -e browser"
).By

PROGRAM = Path(__file__).parent / "themed_site.py"
LIST = "/admin/syncguard_django/lock/"
READABLE = 4.5
"""The contrast that WCAG requires for text."""

# The colours that the browser shows: of the text, and of its background.
COLOURS = """
const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
const behind = [];
for (let element = arguments[0]; element; element = element.parentElement) {
  behind.unshift(getComputedStyle(element).backgroundColor);
}
const paint = (colours) => {
  canvas.fillStyle = "white";
  canvas.fillRect(0, 0, 1, 1);
  for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
  return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
};
const style = getComputedStyle(arguments[0]);
return [paint([...behind, style[arguments[1]]]), paint(behind.slice(0, arguments[2]))];
"""


def luminance(colour):
    def linear(channel):
        value = channel / 255
        return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4

    return sum(w * linear(c) for w, c in zip((0.2126, 0.7152, 0.0722), colour, strict=True))


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.fixture(params=["django", "unfold", "grappelli"])
def themed(request, tmp_path, guarded_redis):
    """The address of the site under a theme."""
    if request.param != "django" and find_spec(request.param) is None:
        pytest.skip(f"django-{request.param} is not installed: tox run -e browser")
    if not guarded_redis.is_running:
        guarded_redis.restart()
    with guarded_redis.client() as client:
        client.flushall()
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), request.param, str(tmp_path)],
        env={**os.environ, "SYNCGUARD_TEST_URL": guarded_redis.url},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    address = process.stdout.readline().strip()
    assert address, "the site did not start"
    yield address
    process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.fixture
def backend(guarded_redis):
    with RedisBackend.from_url(guarded_redis.url, key_prefix="testsite") as backend:
        yield backend


def find(driver, selector):
    deadline = time.monotonic() + 20
    while not (found := driver.find_elements(By.CSS_SELECTOR, selector)):
        assert time.monotonic() < deadline, driver.page_source
        time.sleep(0.05)
    return found[0]


def assert_readable(driver, *selectors):
    for selector in selectors:
        element = find(driver, selector)
        assert element.is_displayed(), selector
        assert element.size["width"] >= element.size["height"] > 10, selector
        text, behind = driver.execute_script(COLOURS, element, "color", 99)
        assert contrast(text, behind) >= READABLE, (selector, text, behind)


def assert_bordered(driver, *selectors):
    """A field or a button is distinguishable from its surroundings."""
    for selector in selectors:
        element = find(driver, selector)
        edge, around = driver.execute_script(COLOURS, element, "borderTopColor", -1)
        assert contrast(edge, around) >= 1.3, (selector, edge, around)


def log_in(driver, address, scheme="light"):
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    driver.delete_all_cookies()
    driver.get(f"{address}/admin/login/?next={LIST}")
    find(driver, "[name=username]").send_keys("root")
    find(driver, "[name=password]").send_keys("root")
    find(driver, "[type=submit]").click()


# Elements that overlap a box, have a border or a colour, and neither contain the box nor are inside
# it.
IN_THE_WAY = """
const box = arguments[0], its = box.getBoundingClientRect();
return [...document.querySelectorAll("body *")].filter((other) => {
  if (other.contains(box) || box.contains(other) || !other.checkVisibility()) return false;
  const style = getComputedStyle(other), rect = other.getBoundingClientRect();
  const clear = style.backgroundColor === "rgba(0, 0, 0, 0)";
  const seen = !clear || parseFloat(style.borderBottomWidth) > 0;
  return seen && rect.width && rect.left < its.right && rect.right > its.left
    && rect.top < its.bottom - 1 && rect.bottom > its.top + 1;
}).map((other) => other.outerHTML.slice(0, 200));
"""


def test_when_redis_dies_nothing_overlaps_and_no_count_is_shown(
    themed, chromium, backend, guarded_redis
):
    log_in(chromium, themed)
    empty = find(chromium, ".syncguard-empty")
    assert chromium.execute_script(IN_THE_WAY, empty) == []
    backend.acquire("invoice:42", 600_000, holder="me")
    chromium.get(f"{themed}{LIST}")
    find(chromium, ".syncguard-release")
    counted = re.compile(r"\b\d+ (?:locks?|total|results?)\b")
    assert counted.search(find(chromium, "body").text)
    guarded_redis.kill()
    down = find(chromium, ".syncguard-down")
    assert chromium.execute_script(IN_THE_WAY, down) == []
    assert "The number of locks is unknown" in find(chromium, "body").text
    assert counted.search(find(chromium, "body").text) is None


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_fields_and_buttons_are_readable_under_every_theme(themed, chromium, backend, scheme):
    backend.acquire("invoice:42", 600_000, holder="me")
    log_in(chromium, themed, scheme)
    fields = ("#syncguard-find-key", ".syncguard-find button", "#syncguard-pause")
    assert_readable(chromium, *fields, ".syncguard-note", ".syncguard-release", ".syncguard-hash")
    assert_bordered(chromium, *fields)
    assert find(chromium, ".syncguard-release").size["height"] >= 24, "WCAG's smallest target"
    assert "never a key" in find(chromium, "body").text, "the search warns, in full"
    find(chromium, "#syncguard-find-key").send_keys("invoice:42")
    find(chromium, ".syncguard-find button").click()
    shown = r"held: fence 1, holder me"
    deadline = time.monotonic() + 20
    while not re.search(shown, chromium.page_source):
        assert time.monotonic() < deadline, chromium.page_source
        time.sleep(0.05)
    find(chromium, ".syncguard-release").click()
    find(chromium, ".syncguard-yes")
    assert "Force-release a lock?" in find(chromium, "body").text
    assert_readable(chromium, ".syncguard-yes", ".syncguard-no", ".syncguard-facts td")
    assert_bordered(chromium, ".syncguard-yes", ".syncguard-no")
    find(chromium, ".syncguard-yes").click()
    find(chromium, ".syncguard-empty")
    assert not backend.is_locked("invoice:42")
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
