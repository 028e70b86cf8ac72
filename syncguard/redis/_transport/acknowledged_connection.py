"""A second pipelined connection, for calls that replicas must confirm: one WAIT for many of them.

WAIT blocks its connection until the replicas have answered. So what is called meanwhile is
collected, and sent together when the answer is there, again with one WAIT. A call is answered with
a pair: the reply of its script, and the number of replicas.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import redis

from syncguard.redis._transport.connections import AsyncPool
from syncguard.redis._transport.pipelined_connection import Entry, PipelinedConnection
from syncguard.redis._transport.request_packing import pack


class _WaitEntry(Entry[Any]):
    """The place of a WAIT among the requests that have no reply yet."""

    __slots__ = ()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future = loop.create_future()
        self.sent_at = loop.time()


class AcknowledgedConnection(PipelinedConnection):
    """Answers a call when the WAIT after it is answered."""

    def __init__(
        self, pool: AsyncPool, loop: asyncio.AbstractEventLoop, wait: tuple[str, ...]
    ) -> None:
        super().__init__(pool, loop)
        self._wait: Final = pack(wait)
        self._unconfirmed: list[tuple[Entry[Any], object]] = []
        """Executed; the WAIT after them has no reply yet."""

    def _flush(self) -> None:
        if self._sent:  # a WAIT is on its way
            self._flush_scheduled = False
        else:
            super()._flush()

    def _write(self, entries: list[Entry[Any]]) -> None:
        super()._write(entries)
        if self._sent:
            assert self._transport is not None
            self._transport.write(self._wait)
            self._sent.append(_WaitEntry(self._loop))

    def _answer(self, entry: Entry[Any], reply: object) -> None:
        if not isinstance(entry, _WaitEntry):
            self._unconfirmed.append((entry, reply))
            return
        confirmed, self._unconfirmed = self._unconfirmed, []
        for each, of_script in confirmed:
            super()._answer(each, (of_script, reply))
        self._flush_soon()

    def _answer_error(self, entry: Entry[Any], reply: redis.ResponseError) -> bool:
        if isinstance(entry, _WaitEntry):
            self._answer(entry, reply)  # for example a missing permission
            return True
        return super()._answer_error(entry, reply)

    def lose(self, error: Exception, *, executed: bool = True) -> None:
        self._send_unconfirmed_again()
        super().lose(error, executed=executed)

    def close(self) -> None:
        self._send_unconfirmed_again()
        super().close()

    def _send_unconfirmed_again(self) -> None:
        waiting = [entry for entry in self._sent if not isinstance(entry, _WaitEntry)]
        self._sent.clear()
        self._sent.extend(entry for entry, _ in self._unconfirmed)
        self._sent.extend(waiting)
        self._unconfirmed.clear()
