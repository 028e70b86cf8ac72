"""What keys and prefixes of Hypothesis are made of: every character that they may contain."""

from __future__ import annotations

import unicodedata

from hypothesis import strategies as st

from syncguard import MAX_KEY_LENGTH_BYTES
from syncguard.newer_code_points import RANGES

NEWER = [chr(code) for first, last in RANGES for code in range(first, last + 1)]
UNKNOWN = [char for char in NEWER if unicodedata.category(char) == "Cn"]
"""What this Python refuses, because it does not know it: ``unit/test_newer_code_points.py``."""

KEY_LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters=["\0", *UNKNOWN])


def fits(key: str) -> bool:
    """Whether a key is short enough. In NFC, some characters have three times as many bytes."""
    return len(unicodedata.normalize("NFC", key).encode()) <= MAX_KEY_LENGTH_BYTES
