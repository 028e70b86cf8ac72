"""What keys and prefixes of Hypothesis are made of: every character that they may contain."""

from __future__ import annotations

import unicodedata

from hypothesis import strategies as st

from syncguard.newer_code_points import RANGES

_NEWER = [chr(code) for first, last in RANGES for code in range(first, last + 1)]
# This Python refuses those that it does not know: ``unit/test_newer_code_points.py``.
_UNKNOWN = [char for char in _NEWER if unicodedata.category(char) == "Cn"]

KEY_LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters=["\0", *_UNKNOWN])
