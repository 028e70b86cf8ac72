"""A worker in an asyncio task: the same visits as ``worker_blocking`` makes, without the fork."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from history.observer import Choices, Observer
from history.worker_blocking import PATIENCE
from syncguard import LockLost, aio
from syncguard.backend import AsyncLockBackend
from syncguard.clock import holder_clock_ms


@dataclass
class AsyncWorker:
    """Runs until a moment on the holder's clock."""

    backend: AsyncLockBackend
    seen: Observer
    choices: Choices

    async def run(self, until_ms: float) -> None:
        while holder_clock_ms() < until_ms:
            visit = self.choices.visit()
            with self.seen.call(f"asyncio {visit}"):
                await getattr(self, visit)(self.choices.key())
            await asyncio.sleep(self.choices.pause_s())

    async def short(self, key: str) -> None:
        await self._stay(key, self.choices.short_s())

    async def extended(self, key: str) -> None:
        await self._stay(key, self.choices.beyond_ttl_s(), auto_extend=True, on_lost=self._on_lost)

    async def overstayed(self, key: str) -> None:
        await self._stay(key, self.choices.beyond_ttl_s())

    async def watched(self, key: str) -> None:
        await self._stay(key, self.choices.beyond_ttl_s(), on_lost=self._on_lost)

    async def handle(self, key: str) -> None:
        ttl_ms = self.choices.ttl_ms
        result = await self.backend.acquire(key, ttl_ms)
        if not result.ok:
            return
        self.seen.granted(key, result, ttl_ms)
        await asyncio.sleep(self.choices.short_s())
        self.seen.may_believe(result, ttl_ms)
        await result.extend(ttl_ms)
        await result.release()
        await result.release()

    async def handed_over(self, key: str) -> None:
        ttl_ms = self.choices.ttl_ms
        result = await self.backend.acquire(key, ttl_ms)
        if not result.ok:
            return
        self.seen.granted(key, result, ttl_ms)
        self.seen.leaving(result)
        adopted = await self.backend.adopt(result.lock_id, ttl_ms)
        if not adopted.ok:
            return
        self.seen.granted(key, adopted, ttl_ms, adopted=True)
        block = aio.hold(self.backend, adopted, on_lost=self._on_lost)
        await self._stay_in(block, self.choices.short_s())
        await result.extend(ttl_ms)
        await result.release()

    async def forked(self, key: str) -> None:
        """An event loop cannot be forked: a short visit instead."""
        await self.short(key)

    async def _stay(self, key: str, seconds: float, **options: Any) -> None:
        ttl_ms = self.choices.ttl_ms
        block = aio.lock(self.backend, key, ttl_ms, acquisition=PATIENCE, **options)
        await self._stay_in(block, seconds, key)

    async def _stay_in(self, block: Any, seconds: float, key: str | None = None) -> None:
        held = None
        try:
            async with block as held:
                if key is not None:
                    self.seen.granted(key, held, self.choices.ttl_ms)
                await self._believe_for(held, seconds)
                self.seen.leaving(held)
        except LockLost:
            self.seen.told(held, "left")
        if held is not None:
            self.seen.left(held)

    async def _believe_for(self, held: Any, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self.seen.believes(held) and time.monotonic() < end:
            await asyncio.sleep(min(0.02, max(0.0, end - time.monotonic())))

    def _on_lost(self, held: Any) -> None:
        self.seen.told(held, "on_lost")
