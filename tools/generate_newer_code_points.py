"""Writes ``syncguard/newer_code_points.py``: code points that normalise differently by version.

Needs ``unicodedata2`` for Unicode 17 and ``unicodedataplus``, which knows the version that added a
code point. Run it after a new version of Unicode::

    pip install "unicodedata2==17.*" unicodedataplus
    python tools/generate_newer_code_points.py
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

import unicodedata2
import unicodedataplus

OLDEST = 13.0
"""The version of Unicode in Python 3.10, the oldest that SyncGuard supports."""

NEWEST = "17.0.0"
TARGET = Path(__file__).parents[1] / "syncguard" / "newer_code_points.py"

HEAD = '''\
"""Code points newer than Unicode 13.0 that take part in normalisation. Generated: do not edit.

``tools/generate_newer_code_points.py`` wrote it from Unicode {newest}: every code point added after
13.0 that has a combining class, a canonical decomposition, or an NFC quick check that is not Yes.
"""

from __future__ import annotations

from typing import Final

RANGES: Final = (
{rows}
)
"""The first and the last code point of each range."""
'''


def is_newer(code: int) -> bool:
    """Whether a version after 13.0 added the code point."""
    if unicodedata2.category(chr(code)) == "Cn":
        return False
    age = unicodedataplus.age(chr(code))  # "Unassigned": newer than this package
    return age == "Unassigned" or float(age) > OLDEST


def parts_of_compositions() -> set[str]:
    """The code points that may combine with the one before them: their quick check is Maybe."""
    parts: set[str] = set()
    for code in range(sys.maxunicode + 1):
        text = unicodedata2.decomposition(chr(code))
        if text and not text.startswith("<"):
            pair = "".join(chr(int(part, 16)) for part in text.split())
            if len(pair) == 2 and unicodedata2.normalize("NFC", pair) == chr(code):
                parts.add(pair[1])
    return parts


def code_points() -> list[int]:
    """All code points of the table, in order."""
    maybe = parts_of_compositions()

    def takes_part(code: int) -> bool:
        char = chr(code)
        text = unicodedata2.decomposition(char)
        return (
            unicodedata2.combining(char) != 0
            or (text != "" and not text.startswith("<"))
            or unicodedata2.normalize("NFC", char) != char
            or char in maybe
        )

    return [code for code in range(sys.maxunicode + 1) if is_newer(code) and takes_part(code)]


def ranges() -> list[tuple[int, int]]:
    """The same as ranges: the first and the last code point of each."""
    found = []
    for _, group in groupby(enumerate(code_points()), lambda pair: pair[1] - pair[0]):
        codes = [code for _, code in group]
        found.append((codes[0], codes[-1]))
    return found


def main() -> None:
    if unicodedata2.unidata_version != NEWEST:
        sys.exit(f"needs unicodedata2 for Unicode {NEWEST}, not {unicodedata2.unidata_version}")
    rows = "\n".join(f"    (0x{first:05X}, 0x{last:05X})," for first, last in ranges())
    TARGET.write_text(HEAD.format(newest="17.0", rows=rows), "utf-8")


if __name__ == "__main__":
    main()
