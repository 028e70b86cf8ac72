"""The heartbeat's channel, an optional part: extends many locks at once, without blocking."""

from __future__ import annotations

import select
from collections.abc import Sequence

import pytest

from syncguard.backend import (
    ExtendChannel,
    ExtendResult,
    Extension,
    LockBackend,
    LockError,
    OpensExtendChannel,
    SpreadsLocks,
    generate_lock_id,
)
from syncguard.testing.conformance.fixtures import (
    LONG_MS,
    ConformanceFixtures,
    MakeBackend,
    acquired,
    require_part,
)

_TIMEOUT_S = 20.0


class ExtendChannelConformance(ConformanceFixtures):
    """What ``OpensExtendChannel`` promises, where a backend offers it."""

    @pytest.fixture
    def channel(self, make_backend: MakeBackend) -> ExtendChannel:
        backend = make_backend()
        require_part(backend, OpensExtendChannel)
        assert isinstance(backend, OpensExtendChannel)
        channel = backend.open_extend_channel(_TIMEOUT_S * 1000)
        if channel is None:
            pytest.skip("this backend has no channel with this client")
        return channel

    def test_extensions_are_answered_in_the_order_they_were_sent(
        self, channel: ExtendChannel, backend: LockBackend
    ) -> None:
        first, second = acquired(backend, "first", LONG_MS), acquired(backend, "second", LONG_MS)
        gone = generate_lock_id()
        answers = _extended(
            channel, [(first.lock_id, 70_000), (gone, 70_000), (second.lock_id, 80_000)]
        )
        assert [isinstance(answer, ExtendResult) and answer.ok for answer in answers] == [
            True,
            False,
            True,
        ]
        for lock, answer in ((first, answers[0]), (second, answers[2])):
            info = backend.lookup(lock_id=lock.lock_id)
            assert isinstance(answer, ExtendResult)
            assert info is not None
            assert info.expires_at_ms == answer.expires_at_ms
            assert info.expires_at_ms > lock.expires_at_ms

    def test_a_channel_can_be_used_several_times(
        self, channel: ExtendChannel, backend: LockBackend
    ) -> None:
        lock = acquired(backend, "k", LONG_MS)
        for round in range(3):
            [answer] = _extended(
                channel, [(lock.lock_id, LONG_MS + 1_000 * (round + 1))], close=False
            )
            assert isinstance(answer, ExtendResult)
            assert answer.ok
        channel.close()

    def test_a_hundred_extensions_are_answered(
        self, channel: ExtendChannel, backend: LockBackend
    ) -> None:
        locks = [acquired(backend, f"lock {nth}", LONG_MS) for nth in range(100)]
        answers = _extended(channel, [(lock.lock_id, LONG_MS) for lock in locks])
        assert all(isinstance(answer, ExtendResult) and answer.ok for answer in answers)

    def test_a_channel_to_the_server_of_a_lock_extends_it(self, backend: LockBackend) -> None:
        """What ``SpreadsLocks`` promises, where locks are on several servers."""
        require_part(backend, SpreadsLocks)
        assert isinstance(backend, SpreadsLocks)
        lock = acquired(backend, "k", LONG_MS)
        server = backend.server_of(lock.lock_id)
        if server is None:
            pytest.skip("all locks of this backend are on one server")
        channel = backend.open_server_channel(server, _TIMEOUT_S * 1000)
        [answer] = _extended(channel, [(lock.lock_id, LONG_MS + 10_000)])
        assert isinstance(answer, ExtendResult)
        assert answer.ok
        info = backend.lookup(lock_id=lock.lock_id)
        assert info is not None
        assert info.expires_at_ms == answer.expires_at_ms


def _extended(
    channel: ExtendChannel, extensions: Sequence[Extension], *, close: bool = True
) -> list[ExtendResult | LockError]:
    """Send, and wait as the heartbeat does: with select on the channel's file descriptor."""
    answers: list[ExtendResult | LockError] = []
    channel.send(extensions)
    while len(answers) < len(extensions):
        wanted = [channel] if channel.wants_to_write else []
        readable, writable, _ = select.select([channel], wanted, [], _TIMEOUT_S)
        assert readable or writable, "the channel did not answer in time"
        answers += channel.receive()
    if close:
        channel.close()
    return answers
