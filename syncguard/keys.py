"""Keys, storage keys, hashes, lock ids, fences and labels, as pure functions.

No I/O, and nothing here is specific to Redis: a backend builds its names with
``normalize_and_validate_key``, ``make_storage_key`` and ``make_fence_key``.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import struct
import unicodedata
from binascii import b2a_base64
from collections.abc import Callable
from operator import mul
from typing import Final

from syncguard.constants import (
    FENCE_DIGITS,
    LOCK_ID_BYTES,
    MAX_HOLDER_LENGTH_BYTES,
    MAX_KEY_LENGTH_BYTES,
    MAX_TTL_MS,
)
from syncguard.errors import invalid_argument
from syncguard.newer_code_points import RANGES

_LOCK_ID: Final = re.compile(r"[A-Za-z0-9_-]{22}")
_RESERVED: Final = ("fence", "id")
_MASK: Final = 0xFFFFFFFF
_HASHES: Final = ((31, 1), (127, 3), (2047, 7))
_BLOCK: Final = 512
_POWERS: Final = {
    base: [pow(base, _BLOCK - 1 - n, 1 << 32) for n in range(_BLOCK)] for base, _ in _HASHES
}
_DIGEST_BYTES: Final = 16
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")
_UNKNOWN_HERE: Final = frozenset(
    char
    for first, last in RANGES
    for char in map(chr, range(first, last + 1))
    if unicodedata.category(char) == "Cn"
)
"""What another Python or language may normalise in another way: this Python does not know it."""

_KEY_TOO_LONG: Final = f"a key must have at most {MAX_KEY_LENGTH_BYTES} bytes of UTF-8"


def normalize_and_validate_key(key: str) -> str:
    """The key in Unicode NFC. Raises ``InvalidArgument`` if it is not valid."""
    if not isinstance(key, str):
        raise invalid_argument(f"a key must be a str, not {type(key).__name__}")
    if not key:
        raise invalid_argument("a key must not be empty")
    if len(key) > 4 * MAX_KEY_LENGTH_BYTES:
        # NFC joins at most four code points into one, so this key is too long in any case.
        # Normalising megabytes first would let an attacker waste our time.
        raise invalid_argument(_KEY_TOO_LONG)
    if "\0" in key:
        # PostgreSQL cannot store it as text. Refused everywhere, so that keys are portable.
        raise invalid_argument("a key must not contain a NUL character")
    if key.isascii():  # one byte per character, and in NFC already
        if len(key) > MAX_KEY_LENGTH_BYTES:
            raise invalid_argument(_KEY_TOO_LONG)
        return key
    check_known(key, "a key")
    normalized = unicodedata.normalize("NFC", key)
    if len(_utf8(normalized, "a key")) > MAX_KEY_LENGTH_BYTES:
        raise invalid_argument(_KEY_TOO_LONG)
    return normalized


def refuse_reserved_key(normalized: str) -> None:
    """Raise ``InvalidArgument`` for a key that could be the name of another lock's counter."""
    for word in _RESERVED:
        if normalized.startswith(word + ":"):
            raise invalid_argument(
                f"a key must not start with '{word}:': SyncGuard uses these names itself"
            )


def validate_key_prefix(prefix: str) -> str:
    """The prefix without colons at its end. Raises ``InvalidArgument``, also if not in NFC."""
    if not isinstance(prefix, str):
        raise invalid_argument(f"key_prefix must be a str, not {type(prefix).__name__}")
    if "\0" in prefix:
        raise invalid_argument("key_prefix must not contain a NUL character")
    _utf8(prefix, "key_prefix")
    check_known(prefix, "key_prefix")
    if not unicodedata.is_normalized("NFC", prefix):
        raise invalid_argument(
            "key_prefix must be in Unicode NFC: clients in other languages use it unchanged, and"
            " would not see these locks"
        )
    stripped = prefix.rstrip(":")
    if any(segment in _RESERVED for segment in stripped.split(":")):
        raise invalid_argument(
            "key_prefix must not contain a segment 'fence' or 'id': a lock and a fence counter"
            " could then have the same name, and cleanup could delete the counter"
        )
    return stripped


def check_known(text: str, what: str) -> None:
    """Raise InvalidArgument if two programs could normalise this text to two different names."""
    if not _UNKNOWN_HERE.isdisjoint(text):
        raise invalid_argument(
            f"{what} contains a character that is newer than Unicode"
            f" {unicodedata.unidata_version}, the version of this Python: another program could"
            " normalise it in another way, and both would hold the lock"
        )


def make_storage_key(prefix: str, key: str, limit_bytes: int, reserve_bytes: int) -> str:
    """``prefix:key``, or ``prefix:hash`` if ``prefix:key`` exceeds the backend's limit.

    ``reserve_bytes`` stays free for what the backend appends to the name. The hash is the
    first 128 bits of SHA-256 over the full prefixed key, in base64url without padding.
    """
    _require_str("a prefix", prefix)
    _require_str("a key", key)
    validate_count("limit_bytes", limit_bytes)
    validate_count("reserve_bytes", reserve_bytes)
    head = unicodedata.normalize("NFC", prefix).rstrip(":")
    head = f"{head}:" if head else ""
    full = head + unicodedata.normalize("NFC", key)
    head_bytes = len(_utf8(head, "a prefix"))
    if head_bytes + reserve_bytes > limit_bytes:
        raise invalid_argument("the key prefix is too long: it leaves no room for a key")
    encoded = _utf8(full, "a key")
    if len(encoded) + reserve_bytes <= limit_bytes:
        return full
    digest = hashlib.sha256(encoded).digest()[:_DIGEST_BYTES]
    hashed = head + _base64url(digest)
    if len(hashed.encode()) + reserve_bytes > limit_bytes:
        raise invalid_argument("the key prefix is too long: it leaves no room for a hashed key")
    return hashed


def make_fence_key(prefix: str, base_key: str, limit_bytes: int, reserve_bytes: int) -> str:
    """The name of a lock's fence counter, derived from the lock's *storage* key.

    Deriving it from the user's key instead would let two keys share a counter once one of the
    two names is hashed and the other is not.
    """
    return make_storage_key(prefix, f"fence:{base_key}", limit_bytes, reserve_bytes)


def hash_key(value: str) -> str:
    """The specification's 96-bit display hash of a key or lock id: 24 lower-case hex digits.

    For people and dashboards only. It is not cryptographic: a short key can be computed from its
    hash, and two keys with one hash are easy to find. Do not decide anything by this hash alone.
    """
    if not isinstance(value, str):
        raise invalid_argument(f"only a str can be hashed, not {type(value).__name__}")
    encoded = unicodedata.normalize("NFC", value).encode("utf-16-le", "surrogatepass")
    units = struct.unpack(f"<{len(encoded) // 2}H", encoded)
    h1, h2, h3 = (factor * _polynomial(base, units) & _MASK for base, factor in _HASHES)
    return f"{h1:08x}{h2:08x}{h3:08x}"


def _polynomial(base: int, units: tuple[int, ...]) -> int:
    """``h = base * h + unit`` over the units, modulo 2^32; as a sum of products, for speed."""
    total = 0
    for start in range(0, len(units), _BLOCK):
        block = units[start : start + _BLOCK]
        powers = _POWERS[base][_BLOCK - len(block) :]
        total = total * pow(base, len(block), 1 << 32) + sum(map(mul, block, powers))
    return total


def keyed_hash(secret: bytes, value: str) -> str:
    """96 bits of HMAC-SHA-256 in the form of ``hash_key``: the hash with a ``hash_secret``.

    For a secret that is a ``str``, pass its UTF-8.
    """
    if not isinstance(secret, bytes):
        raise invalid_argument(f"secret must be bytes, not {type(secret).__name__}")
    _require_str("value", value)
    message = unicodedata.normalize("NFC", value).encode("utf-8", "surrogatepass")
    return hmac.digest(secret, message, "sha256").hex()[:24]


def display_hash(secret: str | bytes | None) -> Callable[[str], str]:
    """The hash function that a backend with this ``hash_secret`` applies to keys and lock ids."""
    if secret is None:
        return hash_key
    if not isinstance(secret, str | bytes) or not secret:
        raise invalid_argument("hash_secret must be a non-empty str or bytes")
    key = _utf8(secret, "hash_secret") if isinstance(secret, str) else secret
    return lambda value: keyed_hash(key, value)


def generate_lock_id() -> str:
    """A new lock id: 128 random bits from the system's generator, 22 characters."""
    return _base64url(os.urandom(LOCK_ID_BYTES))


def validate_lock_id(lock_id: str) -> str:
    """The lock id itself. Raises ``InvalidArgument`` if malformed, also by a trailing newline."""
    if not isinstance(lock_id, str) or _LOCK_ID.fullmatch(lock_id) is None:
        raise invalid_argument("a lock id has exactly 22 characters out of A-Z a-z 0-9 _ -")
    return lock_id


def validate_ttl_ms(ttl_ms: int, name: str = "ttl_ms") -> int:
    """A positive whole number of milliseconds. ``True`` and ``1.0`` are not whole numbers here."""
    if type(ttl_ms) is not int or not 0 < ttl_ms <= MAX_TTL_MS:
        raise invalid_argument(
            f"{name} must be a whole number of milliseconds from 1 to {MAX_TTL_MS}"
        )
    return ttl_ms


def validate_ms(name: str, value: int) -> int:
    """A number of milliseconds that may be 0."""
    if type(value) is not int or not 0 <= value < 2**53:
        raise invalid_argument(f"{name} must be a whole number of milliseconds, 0 or more")
    return value


def validate_count(name: str, value: int) -> int:
    """A number of things, such as a limit."""
    if type(value) is not int or value < 0:
        raise invalid_argument(f"{name} must be a whole number, zero or more")
    return value


def validate_holder(holder: str | None) -> str | None:
    """A short printable label for people, or None."""
    if holder is None:
        return None
    if not isinstance(holder, str):
        raise invalid_argument(f"a holder label must be a str, not {type(holder).__name__}")
    if not holder or not holder.isprintable():
        raise invalid_argument("a holder label must be printable text, without line breaks")
    length = len(holder) if holder.isascii() else len(_utf8(holder, "a holder label"))
    if length > MAX_HOLDER_LENGTH_BYTES:
        raise invalid_argument(f"a holder label must have at most {MAX_HOLDER_LENGTH_BYTES} bytes")
    return holder


def format_fence(value: int) -> str:
    """A fence as text: 15 digits, so that comparing the strings compares the numbers."""
    if type(value) is not int or not 0 <= value < 10**FENCE_DIGITS:
        raise invalid_argument(f"a fence is a whole number of at most {FENCE_DIGITS} digits")
    return f"{value:0{FENCE_DIGITS}d}"


def _require_str(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise invalid_argument(f"{what} must be a str, not {type(value).__name__}")


def _utf8(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        # "from None": the original error contains the whole text, which may be a secret.
        raise invalid_argument(f"{what} must be valid Unicode, without lone surrogates") from None


def _base64url(data: bytes) -> str:
    # Sixteen bytes are 22 characters and two of padding. Not base64.urlsafe_b64encode: it takes
    # three times as long, and every acquire creates an id.
    return b2a_base64(data, newline=False).translate(_URL_SAFE)[:22].decode()
