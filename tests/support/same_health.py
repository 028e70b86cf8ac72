"""Compares two reports on the health of one server."""

from __future__ import annotations

from syncguard.backend import Health

_TIMED = ("roundTripMs", "clockOffsetMs")


def assert_same_health(found: Health, expected: Health) -> None:
    """Fail unless both say the same, apart from what was timed."""
    assert found.findings == expected.findings
    assert found.fields.keys() == expected.fields.keys()
    for name, value in expected.fields.items():
        assert name in _TIMED or found.fields[name] == value, name
