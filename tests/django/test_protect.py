"""``protect``: a transaction holds the row of its lock, so that a late holder cannot commit.

The stopped holder is a real process, which SIGSTOP stops inside its transaction for longer than its
lock lives.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from databases import isolated
from django.db import connections, transaction
from django.db.transaction import TransactionManagementError
from django.test.utils import CaptureQueriesContext
from testsite.models import Account

from syncguard import LockError
from syncguard_django import lock, locks
from syncguard_django.fencing import StaleFence, protect

LEVELS = ("read committed", "repeatable read", "serializable")
ROUNDS = int(os.environ.get("SYNCGUARD_TEST_ROUNDS", "5"))
HOLDER = Path(__file__).parent / "stopped_holder.py"
LONG_MS = 60_000

pytestmark = [pytest.mark.slow]


@pytest.fixture
def database(locks_in_postgres):
    """The alias of a database that has an account, and the locks."""
    Account.objects.using(locks_in_postgres).create(pk=1)
    yield locks_in_postgres
    Account.objects.using(locks_in_postgres).all().delete()


@pytest.fixture(params=LEVELS)
def at_level(request, database):
    """The alias of the same database at each isolation level."""
    with isolated(database, request.param) as alias:
        yield alias


@pytest.fixture
def key(request):
    """A key of its own for each test: some leave their lock to another holder."""
    return request.node.name


def take_over(key):
    """Free a lock by force, and acquire it for another holder."""
    info = locks["default"].lookup(key=key)
    fence, lock_id_hash = info.fence, info.lock_id_hash
    assert locks["default"].force_release(info.key_hash, fence=fence, lock_id_hash=lock_id_hash).ok
    assert locks["default"].acquire(key, LONG_MS).ok


def test_the_holder_can_write(at_level, key):
    with lock(key, LONG_MS) as held, transaction.atomic(at_level):
        protect(held, database=at_level)
        Account.objects.using(at_level).filter(pk=1).update(owner="holder")
    assert Account.objects.using(at_level).get(pk=1).owner == "holder"


def test_the_database_of_the_alias_is_the_default(database, key):
    with lock(key, LONG_MS) as held, transaction.atomic(database):
        protect(held)
        protect(held)  # again, in the same transaction


def test_nobody_acquires_the_lock_before_the_transaction_ends(at_level, key):
    """Also not after a force-release: the lock is free, and its row is not."""
    with lock(key, LONG_MS) as held:
        with transaction.atomic(at_level):
            protect(held, database=at_level)
            info = locks["default"].lookup(key=key)
            locks["default"].force_release(
                info.key_hash, fence=info.fence, lock_id_hash=info.lock_id_hash
            )
            assert not locks["default"].acquire(key, LONG_MS)
        assert locks["default"].acquire(key, LONG_MS).ok
        held.keep()


def test_a_heartbeat_extends_a_protected_lock(at_level, key):
    with lock(key, LONG_MS) as held, transaction.atomic(at_level):
        protect(held, database=at_level)
        assert locks["default"].extend(held.lock_id, LONG_MS).ok


def test_a_lock_is_released_inside_its_own_transaction(at_level, key):
    with transaction.atomic(at_level):
        with lock(key, LONG_MS, until="block") as held:
            protect(held, database=at_level)
        assert not locks["default"].is_locked(key)


def test_a_late_holder_is_refused(at_level, key):
    with lock(key, LONG_MS) as held:
        take_over(key)
        with pytest.raises(StaleFence, match="is stale: its lock was lost or released"):
            with transaction.atomic(at_level):
                protect(held, database=at_level)
        held.keep()


def test_a_late_holder_that_ignores_the_refusal_cannot_commit(at_level, key):
    with lock(key, LONG_MS) as held:
        take_over(key)
        with transaction.atomic(at_level):
            Account.objects.using(at_level).filter(pk=1).update(owner="late")
            with pytest.raises(StaleFence):
                protect(held, database=at_level)
        held.keep()
    assert written(at_level) != "late"


def test_a_late_holder_that_is_refused_in_an_inner_block_cannot_commit_the_outer_one(at_level, key):
    """The savepoint of the inner block would undo the refusal, and keep the write before it."""
    with lock(key, LONG_MS) as held:
        take_over(key)
        with transaction.atomic(at_level):
            Account.objects.using(at_level).filter(pk=1).update(owner="late")
            for _ in range(2):
                with pytest.raises((StaleFence, TransactionManagementError)):
                    with transaction.atomic(at_level), transaction.atomic(at_level):
                        protect(held, database=at_level)
                with pytest.raises(TransactionManagementError):
                    Account.objects.using(at_level).filter(pk=1).update(owner="late")
        held.keep()
    assert written(at_level) != "late"


@pytest.mark.parametrize("level", LEVELS[1:])
def test_a_takeover_after_the_snapshot_cannot_commit_the_outer_block(database, level, key):
    with isolated(database, level) as alias, lock(key, LONG_MS) as held:
        with transaction.atomic(alias):
            Account.objects.using(alias).filter(pk=1).update(owner="late")
            take_over(key)
            with pytest.raises(StaleFence), transaction.atomic(alias):
                protect(held, database=alias)
        held.keep()
    assert written(database) != "late"


def test_an_inner_block_protects_until_the_outer_one_ends(at_level, key):
    with transaction.atomic(at_level):
        with lock(key, LONG_MS, until="block") as held, transaction.atomic(at_level):
            protect(held, database=at_level)
        assert not locks["default"].acquire(key, LONG_MS)
    assert locks["default"].acquire(key, LONG_MS).ok


def test_a_refusal_does_not_end_the_transaction_of_a_test_case(database, key):
    """It ends what would be the whole transaction in production."""
    around_a_test = transaction.atomic(database)
    around_a_test._from_testcase = True
    with around_a_test, lock(key, LONG_MS) as held:
        take_over(key)
        with pytest.raises(StaleFence), transaction.atomic(database):
            with transaction.atomic(database):
                protect(held)
        held.keep()
        assert written(database) == ""


def test_the_log_of_queries_does_not_contain_the_lock_id(database, key):
    with lock(key, LONG_MS) as held, transaction.atomic(database):
        with CaptureQueriesContext(connections[database]) as queries:
            protect(held)
            Account.objects.using(database).count()
    assert len(queries) >= 1
    assert not [query for query in queries if held.lock_id in query["sql"]]


@pytest.mark.parametrize("level", LEVELS[1:])
def test_a_takeover_after_the_snapshot_is_a_stale_fence(database, level, key):
    with isolated(database, level) as alias, lock(key, LONG_MS) as held:
        with pytest.raises(StaleFence):
            with transaction.atomic(alias):
                Account.objects.using(alias).count()
                take_over(key)
                protect(held, database=alias)
        held.keep()


@pytest.mark.parametrize("level", LEVELS[1:])
@pytest.mark.filterwarnings("ignore::syncguard_django.LockOrderWarning")
def test_a_lock_from_after_the_snapshot_is_explained(database, level, key):
    with isolated(database, level) as alias:
        with pytest.raises(LockError, match="acquire the lock before that") as raised:
            with transaction.atomic(alias):
                Account.objects.using(alias).count()
                with lock(key, LONG_MS, until="block") as held:
                    protect(held, database=alias)
        assert raised.value.code == "InvalidArgument"


def test_outside_of_a_transaction_it_is_refused(database, key):
    with lock(key, LONG_MS) as held:
        with pytest.raises(TransactionManagementError, match=r"inside\s+transaction.atomic"):
            protect(held, database=database)


def test_something_else_than_a_held_lock_is_refused(database):
    with transaction.atomic(database), pytest.raises(LockError, match="as held"):
        protect("000000000000001", database=database)


@pytest.mark.django_db
def test_locks_in_another_place_cannot_protect(backend, key):
    with backend.lock(key, LONG_MS) as held:
        with pytest.raises(LockError, match="The alias default has no DATABASE: use guard") as told:
            protect(held)
    assert told.value.code == "InvalidArgument"


@pytest.mark.skipif(find_spec("psycopg2") is None, reason="psycopg2 is not installed")
@pytest.mark.parametrize("level", LEVELS)
def test_a_site_with_psycopg2_has_its_locks_on_psycopg_3(database, level):
    command = [sys.executable, str(HOLDER.with_name("psycopg2_site.py")), level]
    done = subprocess.run(command, env=environment_of(database), capture_output=True, text=True)
    said = ["driver psycopg2 False", f"protected at {level}", "StaleFence"]
    assert (done.stdout.splitlines(), done.stderr) == (said, "")


# -- a holder that is stopped ------------------------------------------------------------------


def environment_of(database):
    """For a program that uses the same database."""
    entry = connections.settings[database]
    return {
        **os.environ,
        "HOLDER_DATABASE": repr({name: entry[name] for name in ("HOST", "PORT", "NAME")}),
        "HOLDER_USER": entry["USER"],
        "PYTHONPATH": str(HOLDER.parent),
    }


@pytest.fixture
def stopped_holder(database):
    """Starts a process that stops itself, inside its transaction, before or after ``protect``."""
    processes = []

    def start(level, place):
        process = subprocess.Popen(
            [sys.executable, str(HOLDER), level, place],
            env=environment_of(database),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def stop_in_its_transaction(process):
    """Tell the holder to begin a round, and wait until it has stopped itself."""
    process.stdin.write("round\n")
    process.stdin.flush()
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)


def answer_of(process):
    os.kill(process.pid, signal.SIGCONT)
    return process.stdout.readline().strip()


def written(database):
    return Account.objects.using(database).get(pk=1).owner


def until_free(key):
    """The lock for another holder, as soon as it can be acquired."""
    return lock(key, LONG_MS, until="block")


@pytest.mark.rounds
@pytest.mark.parametrize("level", LEVELS)
def test_a_holder_that_was_stopped_before_protect_cannot_commit(database, stopped_holder, level):
    """Its lock expires. Another holder writes. The first continues, and is refused."""
    process = stopped_holder(level, "before")
    for _ in range(ROUNDS):
        stop_in_its_transaction(process)
        with until_free("stopped") as held, transaction.atomic(database):
            protect(held)
            Account.objects.using(database).filter(pk=1).update(owner=f"later {held.fence}")
        assert answer_of(process) == "StaleFence"
        assert written(database) == f"later {held.fence}"


@pytest.mark.rounds
@pytest.mark.parametrize("level", LEVELS)
def test_a_holder_that_was_stopped_after_protect_commits_first(database, stopped_holder, level):
    """Its lock expires, and nobody acquires it before the first holder has committed."""
    process = stopped_holder(level, "after")
    for _ in range(ROUNDS):
        stop_in_its_transaction(process)
        while locks["default"].is_locked("stopped"):
            pass  # it expires by the server's clock
        assert not locks["default"].acquire("stopped", LONG_MS)
        answer = answer_of(process)
        assert answer.startswith("wrote ")
        with until_free("stopped") as held:
            assert written(database) == answer.removeprefix("wrote ")
            assert held.fence > answer.rpartition(" ")[2]
