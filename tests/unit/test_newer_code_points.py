"""A key with a character that this Python's Unicode does not know, and that normalises, is refused.

Else two programs with different tables would give one key two names, and both would hold the lock.
"""

from __future__ import annotations

import importlib.util
import unicodedata
from pathlib import Path

import pytest
from key_letters import NEWER, UNKNOWN

from syncguard import LockError, normalize_and_validate_key
from syncguard.newer_code_points import RANGES
from syncguard.redis.names import Names

KNOWN = [char for char in NEWER if unicodedata.category(char) != "Cn"]
HARMLESS = {
    "emoji of Unicode 15": "\U0001fae8",
    "emoji of Unicode 17": "\U0001faea",
    "private use": "\ue000",
    "noncharacter": "\ufffe",
    "never assigned": "\U000e0080",
}


def test_every_unknown_character_of_the_table_is_refused():
    for char in UNKNOWN:
        for key in (char, f"a{char}b"):
            with pytest.raises(LockError) as caught:
                normalize_and_validate_key(key)
            assert caught.value.code == "InvalidArgument"
            assert char not in str(caught.value)
            assert unicodedata.unidata_version in str(caught.value)


def test_a_prefix_with_an_unknown_character_is_refused():
    for char in UNKNOWN:
        with pytest.raises(LockError, match="newer than Unicode"):
            Names(f"app{char}")


def test_characters_of_the_table_that_this_python_knows_are_accepted():
    for char in KNOWN:
        assert normalize_and_validate_key(f"a{char}") == unicodedata.normalize("NFC", f"a{char}")


@pytest.mark.parametrize("what", HARMLESS)
def test_characters_that_do_not_normalise_are_accepted(what):
    assert normalize_and_validate_key(HARMLESS[what]) == HARMLESS[what]


def test_this_python_knows_some_or_the_test_above_is_empty():
    assert len(NEWER) == 125
    assert UNKNOWN or unicodedata.unidata_version >= "17"


def test_the_table_is_what_the_generator_writes():
    newest = pytest.importorskip("unicodedata2")
    pytest.importorskip("unicodedataplus")
    if newest.unidata_version != "17.0.0":
        pytest.skip(f"unicodedata2 has Unicode {newest.unidata_version}")
    path = Path(__file__).parents[2] / "tools" / "generate_newer_code_points.py"
    spec = importlib.util.spec_from_file_location("generate_newer_code_points", path)
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    assert tuple(generator.ranges()) == RANGES
