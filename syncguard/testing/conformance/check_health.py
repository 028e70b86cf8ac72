"""Health, an optional part: the state of the store, as text and as JSON."""

from __future__ import annotations

import json

import pytest

from syncguard.backend import Health, LockBackend, ReportsHealth, health_of
from syncguard.testing.conformance.fixtures import ConformanceFixtures, acquired, require_part


class HealthConformance(ConformanceFixtures):
    """What ``ReportsHealth`` promises, where a backend offers it."""

    @pytest.fixture
    def health(self, backend: LockBackend) -> Health:
        require_part(backend, ReportsHealth)
        acquired(backend, "secret-invoice")
        return health_of(backend).health()

    def test_the_facts_are_lines_for_people(self, health: Health) -> None:
        assert health.facts
        for what, text in health.facts:
            assert what == what.strip() != ""
            assert (what + text).isprintable()

    def test_the_fields_are_json(self, health: Health) -> None:
        assert json.loads(json.dumps(dict(health.fields))) == dict(health.fields)

    def test_the_fields_do_not_use_names_that_the_command_uses(self, health: Health) -> None:
        assert not {"alias", "healthy", "findings", "error"} & health.fields.keys()

    def test_findings_are_sentences(self, health: Health) -> None:
        assert all(isinstance(finding, str) and finding for finding in health.findings)

    def test_a_report_names_no_key(self, health: Health) -> None:
        assert "secret-invoice" not in repr(health)
