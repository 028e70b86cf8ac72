"""Random operations of several owners, compared with a model. Needs the package hypothesis."""

from __future__ import annotations

import pytest

from syncguard.testing.conformance.fixtures import ConformanceFixtures, MakeBackend


class RandomOperationsConformance(ConformanceFixtures):
    """Whatever several owners do, and in which order, the backend answers as the model does."""

    def test_random_operations_of_several_owners_match_the_model(
        self, make_backend: MakeBackend
    ) -> None:
        pytest.importorskip("hypothesis", reason="the state machine needs hypothesis")
        from syncguard.testing.conformance.state_machine import OWNERS, check_random_operations

        check_random_operations([make_backend() for _ in range(OWNERS)])
