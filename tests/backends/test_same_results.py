"""The same script of operations gives the same results on every backend, blocking and asyncio.

Documented difference: on Redis and in memory a lock is gone at the end of its TTL, on SQLite and on
PostgreSQL one second later, as the tolerance of the specification says.
"""

from __future__ import annotations

import uuid
from contextlib import ExitStack

import pytest
import redis.asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from syncguard import LockError
from syncguard.backend import TIME_TOLERANCE_MS, generate_lock_id
from syncguard.memory import AsyncMemoryBackend, MemoryBackend, MemoryStore
from syncguard.postgres import AsyncPostgresBackend, PostgresBackend
from syncguard.redis import AsyncRedisBackend, RedisBackend
from syncguard.sqlite import AsyncSQLiteBackend, SQLiteBackend
from syncguard.testing import BlockingFacade, LoopThread

KEYS = ("a", "b", "caf\N{LATIN SMALL LETTER E WITH ACUTE}")
STEP_MS = 1_000_000
"""The TTLs are multiples of this, so that their order does not depend on the machine's speed."""

LATER_MS = 1_000
"""Equal TTLs become different ones: each operation gives its lock so much more than the one before.

Otherwise two locks with one TTL would be in the order of their keys if they were acquired in the
same millisecond, and in the order of their acquisition if not.
"""

KEY = st.sampled_from(KEYS)
TTL = st.integers(1, 20).map(lambda n: n * STEP_MS)
LOCK = st.integers(0, 5)
"""Which of the locks that were granted so far; modulo their number."""
HOLDER = st.sampled_from([None, "me", "wörker 7"])

OPERATION = st.one_of(
    st.tuples(st.just("acquire"), KEY, TTL, HOLDER),
    st.tuples(st.just("acquire"), KEY, TTL, HOLDER),
    st.tuples(st.just("release"), LOCK),
    st.tuples(st.just("extend"), LOCK, TTL),
    st.tuples(st.just("adopt"), LOCK, TTL, HOLDER),
    st.tuples(st.just("is_locked"), KEY),
    st.tuples(st.just("lookup"), KEY),
    st.tuples(st.just("lookup_id"), LOCK),
    st.tuples(st.just("list"), st.integers(0, 4), st.integers(0, 3)),
    st.tuples(st.just("force_release"), LOCK),
    st.tuples(st.just("bad"), st.sampled_from(["", "nul\0", "id:x", "fence:x", "k" * 513])),
)


class Player:
    """Plays a script on one backend, and returns results without ids and times."""

    def __init__(self, backend) -> None:
        self.backend = backend
        self.ids = [generate_lock_id()]  # one that no lock has
        self.seen = [None]
        self.later_ms = 0

    def play(self, script):
        return [self._do(operation, *arguments) for operation, *arguments in script]

    def _do(self, operation, *arguments):
        self.later_ms += LATER_MS
        return getattr(self, operation)(*arguments)

    def acquire(self, key, ttl_ms, holder):
        ttl_ms += self.later_ms
        result = self.backend.acquire(key, ttl_ms, holder=holder)
        if not result.ok:
            return result.reason
        return self._granted(result, ttl_ms)

    def adopt(self, nth, ttl_ms, holder):
        ttl_ms += self.later_ms
        result = self.backend.adopt(self._id(nth), ttl_ms, holder=holder)
        return self._granted(result, ttl_ms) if result.ok else None

    def release(self, nth):
        return self.backend.release(self._id(nth)).ok

    def extend(self, nth, ttl_ms):
        ttl_ms += self.later_ms
        result = self.backend.extend(self._id(nth), ttl_ms)
        info = self.backend.lookup(lock_id=self._id(nth))
        return result.ok, result.expires_at_ms == (info and info.expires_at_ms)

    def is_locked(self, key):
        return self.backend.is_locked(key)

    def lookup(self, key):
        return self._shown(self.backend.lookup_raw(key=key))

    def lookup_id(self, nth):
        return self._shown(self.backend.lookup_raw(lock_id=self._id(nth)))

    def list(self, limit, offset):
        page = self.backend.page_raw(limit, offset)
        return page.total, [self._shown(info) for info in page.locks]

    def force_release(self, nth):
        seen = self.seen[nth % len(self.seen)]
        if seen is None:
            return None
        return self.backend.force_release(
            seen.key_hash, fence=seen.fence, lock_id_hash=seen.lock_id_hash
        ).ok

    def bad(self, key):
        with pytest.raises(LockError) as caught:
            self.backend.acquire(key)
        return caught.value.code

    def _granted(self, lock, ttl_ms):
        info = self.backend.lookup(lock_id=lock.lock_id)
        self.ids.append(lock.lock_id)
        self.seen.append(info)
        return lock.fence, lock.ttl_ms == ttl_ms, lock.expires_at_ms == info.expires_at_ms

    def _shown(self, info):
        if info is None:
            return None
        return info.key, self.ids.index(info.lock_id), info.fence, info.holder, info.key_hash

    def _id(self, nth):
        return self.ids[nth % len(self.ids)]


@pytest.fixture
def stores(syncguard_redis, syncguard_postgres, tmp_path):
    """A function that makes every backend, empty, on one store of each kind; they are closed."""
    with ExitStack() as stack:
        loop = stack.enter_context(LoopThread())
        client = stack.enter_context(syncguard_redis.client())
        async_client = redis.asyncio.Redis(port=syncguard_redis.port)
        stack.callback(lambda: loop.run(async_client.aclose()))
        memory, file = MemoryStore(), tmp_path / "locks.sqlite3"
        url = syncguard_postgres.url

        def make(scope: ExitStack, names=()):
            def on(name, backend):
                if backend.is_async:
                    backend = BlockingFacade(backend, loop)
                scope.callback(backend.close)
                return name, backend

            makers = {
                "redis": lambda o: RedisBackend(client, **o),
                "redis asyncio": lambda o: AsyncRedisBackend(async_client, **o),
                "memory": lambda o: MemoryBackend(store=memory, **o),
                "memory asyncio": lambda o: AsyncMemoryBackend(store=memory, **o),
                "sqlite": lambda o: SQLiteBackend(file, fence_floor=None, **o),
                "sqlite asyncio": lambda o: AsyncSQLiteBackend(file, fence_floor=None, **o),
                "postgres": lambda o: PostgresBackend.from_url(url, **o),
                "postgres asyncio": lambda o: AsyncPostgresBackend.from_url(url, **o),
            }
            # Each has locks and fences of its own, by its prefix.
            return dict(
                on(name, maker({"key_prefix": uuid.uuid4().hex}))
                for name, maker in makers.items()
                if name in (names or makers)
            )

        with ExitStack() as scope:
            made = make(scope)
            for name in ("postgres", "sqlite"):
                made[name].setup()
        yield make


def check(script, stores):
    with ExitStack() as scope:
        results = {name: Player(backend).play(script) for name, backend in stores(scope).items()}
    expected = results["redis"]
    for name, result in results.items():
        assert result == expected, name


@pytest.mark.slow
@given(st.lists(OPERATION, min_size=1, max_size=14))
@settings(max_examples=25)
def test_a_random_script_gives_the_same_results_on_every_backend(stores, script):
    check(script, stores)


@pytest.mark.slow
@pytest.mark.rounds
@pytest.mark.timeout(1800)  # eight backends; a busy machine takes seconds for one script
@given(st.lists(OPERATION, min_size=5, max_size=30))
@settings(max_examples=100)
def test_many_random_scripts_give_the_same_results_on_every_backend(stores, script):
    check(script, stores)


@pytest.mark.slow
def test_a_script_with_every_operation_gives_the_same_results_on_every_backend(stores):
    check(
        [
            ("acquire", "a", STEP_MS, "me"),
            ("acquire", "a", STEP_MS, None),
            ("acquire", "b", 2 * STEP_MS, None),
            ("acquire", KEYS[2], 3 * STEP_MS, "wörker 7"),
            ("list", 2, 1),
            ("extend", 1, 9 * STEP_MS),
            ("list", 4, 0),
            ("adopt", 2, STEP_MS, "you"),
            ("lookup_id", 2),
            ("lookup", "b"),
            ("release", 2),
            ("force_release", 2),
            ("force_release", 4),
            ("is_locked", "b"),
            ("release", 1),
            ("release", 1),
            ("acquire", "a", STEP_MS, None),
            ("bad", "nul\0"),
            ("lookup", KEYS[2]),
        ],
        stores,
    )


def shortened(backend, lock):
    """Give the lock a TTL of 200 ms: an acquire with it is no grant on a busy machine."""
    extended = backend.extend(lock.lock_id, 200)
    assert extended.ok
    return extended


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["redis", "memory"])
def test_a_lock_is_gone_at_the_end_of_its_ttl(stores, kind):
    with ExitStack() as scope:
        for backend in stores(scope, (kind, f"{kind} asyncio")).values():
            lock = shortened(backend, backend.acquire("k", 60_000))
            while (page := backend.page_raw()).total:
                assert page.now_ms < lock.expires_at_ms
            assert page.now_ms >= lock.expires_at_ms


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_lock_is_live_for_the_tolerance_after_its_ttl_but_cannot_be_extended(stores, kind):
    with ExitStack() as scope:
        for backend in stores(scope, (kind, f"{kind} asyncio")).values():
            for _ in range(20):  # a busy machine may not look in the second of the tolerance
                lock, late = backend.acquire("k", 60_000), []
                expires_at_ms = shortened(backend, lock).expires_at_ms
                while (page := backend.page_raw()).total:
                    assert page.now_ms < expires_at_ms + TIME_TOLERANCE_MS
                    if page.now_ms >= expires_at_ms and not late:
                        late.append(page.now_ms)
                        assert not backend.extend(lock.lock_id, 60_000)
                        assert not backend.adopt(lock.lock_id, 60_000)
                assert page.now_ms >= expires_at_ms + TIME_TOLERANCE_MS
                if late:
                    break
            else:
                pytest.fail("nothing was seen in the second of the tolerance")


@pytest.mark.parametrize("kind", ["redis", "memory", "sqlite", "postgres"])
def test_a_lock_id_is_known_only_to_backends_of_its_prefix(stores, kind):
    names = (kind, f"{kind} asyncio")
    with ExitStack() as scope:
        pairs = zip(stores(scope, names).values(), stores(scope, names).values(), strict=True)
        for own, other in pairs:
            lock = own.acquire("k", 60_000)
            assert other.lookup(lock_id=lock.lock_id) is None
            assert other.extend(lock.lock_id, 60_000).reason == "not-found"
            assert other.release(lock.lock_id).reason == "not-found"
            assert other.adopt(lock.lock_id, 60_000).reason == "not-found"
            assert lock.release().ok
