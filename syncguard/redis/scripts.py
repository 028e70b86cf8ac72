"""The Lua scripts, read once from ``lua/*.lua``. The first lines of each describe what it does."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Final, NamedTuple

_FOLDER: Final = files("syncguard.redis") / "lua"


class Script(NamedTuple):
    """One script: its text, and the SHA-1 by which Redis identifies it."""

    name: str
    text: str
    sha: str

    @classmethod
    def load(cls, name: str) -> Script:
        return cls.of(name, (_FOLDER / f"{name}.lua").read_text("utf-8"))

    @classmethod
    def of(cls, name: str, text: str) -> Script:
        # Not for security: Redis identifies scripts by their SHA-1.
        return cls(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


ACQUIRE: Final = Script.load("acquire")
RELEASE: Final = Script.load("release")
EXTEND: Final = Script.load("extend")
ADOPT: Final = Script.load("adopt")
UNDO: Final = Script.load("undo")
IS_LOCKED: Final = Script.load("is_locked")
LOOKUP_BY_KEY: Final = Script.load("lookup_by_key")
LOOKUP_BY_ID: Final = Script.load("lookup_by_id")
LIVE_LOCKS: Final = Script.load("live_locks")
FIND_LIVE_LOCKS: Final = Script.load("find_live_locks")
COUNTS: Final = Script.load("counts")
NEXT_TURN: Final = Script.load("next_turn")
END_WAIT: Final = Script.load("end_wait")
PASS_ON_WAKE_UP: Final = Script.load("pass_on_wake_up")
RING_BELL: Final = Script.load("ring_bell")
