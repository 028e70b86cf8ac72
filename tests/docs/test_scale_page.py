"""The page about scale: it prints what it shows, and names its forms as the settings do."""

from __future__ import annotations

import contextlib
import io
import re

from pages import DOCS, blocks_of

PAGE = DOCS / "how-to/scale.md"


def test_the_page_shows_what_its_calculation_prints():
    [calculation] = blocks_of("run", PAGE)
    [shown] = blocks_of("output", PAGE)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(calculation.text, {})  # noqa: S102 - our own page
    assert shown.text.rstrip("\n").splitlines() == printed.getvalue().rstrip("\n").splitlines()


def test_the_calculation_uses_the_figures_of_the_table():
    text = PAGE.read_text(encoding="utf-8")

    def in_table(row: str) -> int:
        found = re.search(rf"^\| {row}[^|]*\| ([\d.]+)", text, re.MULTILINE)
        assert found is not None, row
        return round(float(found[1]))

    names: dict[str, float] = {}
    exec(blocks_of("run", PAGE)[0].text, names)  # noqa: S102 - our own page
    used = {name: round(names[name] * 1e6) for name in ("ACQUIRE", "HEARTBEAT", "RELEASE")}
    assert used == {
        "ACQUIRE": in_table("acquire, one at a time"),
        "HEARTBEAT": in_table("extend, by heartbeats"),
        "RELEASE": in_table("release, one at a time"),
    }
    assert names["LOCK"] == in_table("a live lock")
    assert names["COUNTER"] == in_table("a fence counter")
