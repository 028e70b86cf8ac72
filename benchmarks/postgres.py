"""PostgreSQL: acquire and release against its minimum and its peers, hand-over, and table sizes.

All in one run, on a private server with fsync on. The contenders take turns in short rounds, so
that other load on the machine affects all of them alike; a ratio is the median of the ratios in the
rounds. Two committing single-row UPDATEs are the minimum of a lock that survives a crash. An
advisory lock commits nothing: it is lost with its connection and has no fence.

    python benchmarks/postgres.py [--rounds 60] [--pairs 10] [--heartbeats 100000]
                                  [--counters 1000000]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

import psycopg

from syncguard import Acquisition, lock
from syncguard.postgres import DEFAULT_FENCES_TABLE, DEFAULT_LOCKS_TABLE, PostgresBackend
from syncguard.testing import PostgresServer

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "postgres"))
from pgbouncer import PgBouncer

MINIMUM = "two committing UPDATEs"
GOAL = 1.3
HAND_OVER_GOAL_MS = 10.0


def contenders(server: PostgresServer, bouncer: PgBouncer) -> dict[str, Callable[[], None]]:
    backend = PostgresBackend.from_url(server.url)
    pooled = PostgresBackend.from_url(bouncer.url)
    plain = server.connect(prepare_threshold=0)
    plain.execute("CREATE TABLE bare (id int PRIMARY KEY, n bigint) WITH (fillfactor = 50)")
    plain.execute("INSERT INTO bare VALUES (1, 0)")
    plain.execute(
        "CREATE TABLE shedlock (name text PRIMARY KEY, lock_until timestamptz NOT NULL,"
        " locked_at timestamptz NOT NULL, locked_by text NOT NULL)"
    )
    plain.execute("INSERT INTO shedlock VALUES ('k', now(), now(), 'me')")

    def syncguard_on(own: PostgresBackend, key: str) -> Callable[[], None]:
        def pair() -> None:
            result = own.acquire(key, ttl_ms=30_000)
            assert result.ok
            assert own.release(result.lock_id).ok

        return pair

    def updates() -> None:
        for _ in range(2):
            plain.execute("UPDATE bare SET n = n + 1 WHERE id = 1")

    def shedlock() -> None:
        taken = plain.execute(
            "UPDATE shedlock SET lock_until = now() + interval '30 s', locked_at = now(),"
            " locked_by = 'me' WHERE name = 'k' AND lock_until <= now()"
        )
        assert taken.rowcount == 1
        plain.execute("UPDATE shedlock SET lock_until = now() WHERE name = 'k'")

    return {
        MINIMUM: updates,
        "SyncGuard": syncguard_on(backend, "invoice:42"),
        "SyncGuard behind PgBouncer": syncguard_on(pooled, "invoice:43"),
        "ShedLock's statements": shedlock,
        **_procrastinate(plain),
        **_pglock(server),
    }


def _procrastinate(plain: psycopg.Connection) -> dict[str, Callable[[], None]]:
    """A job with a lock: deferred, fetched (which takes the lock), finished."""
    try:
        schema = resources.files("procrastinate").joinpath("sql").joinpath("schema.sql")
    except ImportError:
        return {}
    plain.execute(schema.read_text("utf-8"), prepare=False)
    ((worker,),) = plain.execute("SELECT * FROM procrastinate_register_worker_v1()").fetchall()

    def job() -> None:
        plain.execute(
            "SELECT procrastinate_defer_jobs_v1(ARRAY[ROW('q', 't', 0, 'k', NULL, '{}'::jsonb,"
            " NULL)::procrastinate_job_to_defer_v1])"
        )
        ((taken,),) = plain.execute(
            "SELECT id FROM procrastinate_fetch_job_v2(NULL, %s)", (worker,)
        ).fetchall()
        plain.execute("SELECT procrastinate_finish_job_v1(%s, 'succeeded', true)", (taken,))

    return {"procrastinate: a job with a lock": job}


def _pglock(server: PostgresServer) -> dict[str, Callable[[], None]]:
    try:
        import django
        import pglock
        from django.conf import settings
    except ImportError:
        return {}
    settings.configure(
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "HOST": server.host,
                "PORT": str(server.port),
                "USER": server.user,
                "NAME": server.database,
            }
        },
        INSTALLED_APPS=["pglock", "pgactivity"],
    )
    django.setup()

    def advisory() -> None:
        with pglock.advisory("invoice:42", timeout=0) as taken:
            assert taken

    return {"django-pglock (advisory)": advisory}


def measure(made: dict[str, Callable[[], None]], rounds: int, pairs: int) -> None:
    times: dict[str, list[float]] = {name: [] for name in made}
    for pair in made.values():
        for _ in range(5):
            pair()
    for _ in range(rounds):
        for name, pair in made.items():
            began = time.perf_counter()
            for _ in range(pairs):
                pair()
            times[name].append((time.perf_counter() - began) / pairs * 1000)
    print(f"{'acquire + release':36} {'median ms':>10} {'ratio':>7}")
    for name, taken in times.items():
        ratios = [mine / bare for mine, bare in zip(taken, times[MINIMUM], strict=True)]
        ratio = statistics.median(ratios)
        verdict = f"  goal {GOAL}: {'met' if ratio <= GOAL else 'MISSED'}"
        is_ours = name == "SyncGuard"
        print(f"{name:36} {statistics.median(taken):10.2f} {ratio:7.2f}{verdict * is_ours}")


WAITER = """
import sys, time
from syncguard import Acquisition, lock
from syncguard.postgres import PostgresBackend
backend = PostgresBackend.from_url(sys.argv[1])
patient = Acquisition(timeout_ms=100_000, max_retries=1, retry_delay_ms=90_000)
for _ in range(int(sys.argv[2])):
    sys.stdin.readline()
    with lock(backend, "hand-over", 60_000, acquisition=patient):
        print(time.time_ns(), flush=True)
"""


def hand_over(server: PostgresServer, times: int) -> None:
    """From the call of release in one process to the lock in another, which waits."""
    command = [sys.executable, "-c", WAITER, server.url, str(times)]
    taken = []
    with (
        PostgresBackend.from_url(server.url) as backend,
        server.connect() as sql,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as waiter,
    ):
        assert waiter.stdin is not None
        assert waiter.stdout is not None
        for _ in range(times):
            patient = Acquisition(timeout_ms=60_000, max_retries=10_000, retry_delay_ms=5)
            with lock(backend, "hand-over", 60_000, acquisition=patient):
                sql.execute(f"UPDATE {DEFAULT_LOCKS_TABLE} SET waiting_until_ms = 0")
                waiter.stdin.write("\n")
                waiter.stdin.flush()
                flagged = f"SELECT 1 FROM {DEFAULT_LOCKS_TABLE} WHERE waiting_until_ms > 0"
                while not sql.execute(flagged).fetchall():
                    time.sleep(0.005)
                time.sleep(0.2)  # it listens by now
                released_at = time.time_ns()
            taken.append((int(waiter.stdout.readline()) - released_at) / 1e6)
    median = statistics.median(taken)
    verdict = "met" if median < HAND_OVER_GOAL_MS else "MISSED"
    print(
        f"\nhand-over between two processes, {times} times: median {median:.1f} ms,"
        f" max {max(taken):.1f} ms  goal {HAND_OVER_GOAL_MS}: {verdict}"
    )


def sizes(sql: psycopg.Connection) -> str:
    sql.execute("SELECT pg_stat_clear_snapshot()")
    ((heap, indexes, dead, updated, heap_only),) = sql.execute(
        "SELECT pg_relation_size(relid), pg_indexes_size(relid), n_dead_tup, n_tup_upd,"
        " n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = %s",
        (DEFAULT_LOCKS_TABLE,),
    ).fetchall()
    return (
        f"heap {heap // 1024} kB, indexes {indexes // 1024} kB, {dead} dead rows,"
        f" {heap_only} of {updated} updates heap-only"
    )


def heartbeats(server: PostgresServer, count: int) -> None:
    batch = 100
    with PostgresBackend.from_url(server.url) as backend, server.connect() as sql:
        held = [backend.acquire(f"beat {nth}", 600_000) for nth in range(batch)]
        extensions = [(each.lock_id, 600_000) for each in held if each.ok]
        print(f"\nbefore {count:,} heartbeats of {batch} locks: {sizes(sql)}")
        began = time.perf_counter()
        for _ in range(count // batch):
            results = backend._runner.run(backend._calls.extend(extensions))
            assert all(result.ok for result in results)
        taken = time.perf_counter() - began
        backend.close()
        time.sleep(1.5)  # the statistics of a session arrive after it
        print(f"after, in {taken:.1f} s: {sizes(sql)}")
        backend.release_many([each.lock_id for each in held if each.ok])


def listing(server: PostgresServer, counters: int) -> None:
    with PostgresBackend.from_url(server.url) as backend, server.connect() as sql:
        for nth in range(100):
            backend.acquire(f"listed {nth}", 600_000)

        def page_ms() -> float:
            taken = []
            for _ in range(30):
                began = time.perf_counter()
                assert backend.page_raw(limit=100).total >= 100
                taken.append((time.perf_counter() - began) * 1000)
            return statistics.median(taken)

        def pair_ms() -> float:
            taken = []
            for _ in range(30):
                began = time.perf_counter()
                result = backend.acquire("with counters", 30_000)
                assert result.ok
                backend.release(result.lock_id)
                taken.append((time.perf_counter() - began) * 1000)
            return statistics.median(taken)

        before = page_ms(), pair_ms()
        sql.execute(
            f"INSERT INTO {DEFAULT_FENCES_TABLE} SELECT 'syncguard:fence:many:' || n, 1"
            f" FROM generate_series(1, {counters}) AS n"
        )
        sql.execute(f"VACUUM ANALYZE {DEFAULT_FENCES_TABLE}")
        after = page_ms(), pair_ms()
        print(
            f"\n100 live locks: a page takes {before[0]:.2f} ms, a pair {before[1]:.2f} ms;"
            f"\nwith {counters:,} fence counters {after[0]:.2f} ms and {after[1]:.2f} ms"
        )


@contextmanager
def servers() -> Iterator[tuple[PostgresServer, PgBouncer]]:
    with PostgresServer(fsync=True) as server:
        with PostgresBackend.from_url(server.url) as backend:
            backend.setup()
        with PgBouncer(server) as bouncer:
            yield server, bouncer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--hand-overs", type=int, default=60)
    parser.add_argument("--heartbeats", type=int, default=100_000)
    parser.add_argument("--counters", type=int, default=1_000_000)
    options = parser.parse_args()
    with servers() as (server, bouncer):
        with server.connect() as sql:
            version = sql.info.server_version // 10_000
        print(f"PostgreSQL {version}, fsync on, load average {os.getloadavg()[0]:.1f}\n")
        measure(contenders(server, bouncer), options.rounds, options.pairs)
        hand_over(server, options.hand_overs)
        heartbeats(server, options.heartbeats)
        listing(server, options.counters)


if __name__ == "__main__":
    main()
