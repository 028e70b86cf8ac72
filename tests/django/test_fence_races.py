"""Two holders at once, on real servers: what the later holder has written is never overwritten.

Each race is run in two ways: with the complete write of the later holder before each statement of
the earlier one in turn; and SYNCGUARD_TEST_ROUNDS times with both at the same time.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from databases import empty, is_a_transaction_blocked, isolated
from django.db import IntegrityError, OperationalError, connections, transaction
from testsite.models import Branch, Document, Entry, Letter

from syncguard import format_fence
from syncguard_django.fencing import StaleFence

pytestmark = pytest.mark.slow

ONE, TWO, THREE = (format_fence(number) for number in (1, 2, 3))
ROUNDS = int(os.environ.get("SYNCGUARD_TEST_ROUNDS", "10"))


class Race:
    """The row is written by ``earlier`` (fence 2) and ``later`` (fence 3), at the same time."""

    def prepare(self, db):
        Entry(pk=7, text="before").save_fenced(ONE, using=db)

    def earlier(self, db):
        raise NotImplementedError

    def later(self, db):
        row = Entry.objects.using(db).get(pk=7)
        row.number = 3
        row.save_fenced(THREE)

    def written(self, db):
        """The number that identifies the writer, and the fence."""
        return Entry.objects.using(db).filter(pk=7).values_list("number", "fence").first()


class Save(Race):
    def earlier(self, db):
        row = Entry.objects.using(db).get(pk=7)
        row.number = 2
        row.save_fenced(TWO)


class SaveOfANewRow(Race):
    def prepare(self, db):
        pass

    def earlier(self, db):
        Entry(pk=7, text="x", number=2).save_fenced(TWO, using=db)

    def later(self, db):
        Entry(pk=7, text="x", number=3).save_fenced(THREE, using=db)


class Update(Race):
    def earlier(self, db):
        Entry.objects.using(db).filter(pk=7).fenced(TWO).update(number=2)


class UpdateOfARowThatStartsToMatch(Race):
    def earlier(self, db):
        Entry.objects.using(db).filter(number=3).fenced(TWO).update(number=2)


class UpdateOverAJoin(Race):
    def prepare(self, db):
        super().prepare(db)
        Entry.objects.using(db).update(branch=Branch.objects.using(db).create(name="north"))

    def earlier(self, db):
        Entry.objects.using(db).filter(branch__name="north").fenced(TWO).update(number=2)


class DeleteOfARowThatStartsToMatch(Race):
    def earlier(self, db):
        Entry.objects.using(db).filter(number=3).fenced(TWO).delete()


class Delete(Race):
    def earlier(self, db):
        Entry.objects.using(db).fenced(TWO).delete()

    def later(self, db):
        return bool(Entry.objects.using(db).filter(pk=7).fenced(THREE).update(number=3))


class DeleteOfAnObjectWhoseRowIsNew(SaveOfANewRow):
    def earlier(self, db):
        Entry(pk=7).delete_fenced(TWO, using=db)


class BulkUpdate(Race):
    def earlier(self, db):
        Entry.objects.using(db).fenced(TWO).bulk_update([Entry(pk=7, number=2)], ["number"])


class UpdateOrCreate(Race):
    def earlier(self, db):
        Entry.objects.using(db).fenced(TWO).update_or_create({"number": 2}, text="before")

    def later(self, db):
        Entry.objects.using(db).fenced(THREE).update_or_create({"number": 3}, text="before")


class Child(Race):
    """The fence is in the table of the parent."""

    def prepare(self, db):
        Letter(pk=7).save_fenced(ONE, using=db)

    def earlier(self, db):
        Letter(pk=7, title="2", pages=2).save_fenced(TWO, using=db)

    def later(self, db):
        Letter(pk=7, title="3", pages=3).save_fenced(THREE, using=db)

    def written(self, db):
        row = Letter.objects.using(db).filter(pk=7).first()
        if row is None:
            return None
        assert row.title in ("", str(row.pages)), "a child has one writer's row, its parent another"
        return row.pages, row.fence


class UpdateOfChildren(Child):
    def earlier(self, db):
        Letter.objects.using(db).fenced(TWO).update(title="2", pages=2)


class NewChildOfANewParent(Child):
    """The later holder writes only the parent."""

    def prepare(self, db):
        pass

    def later(self, db):
        Document(pk=7, title="3").save_fenced(THREE, using=db)

    def written(self, db):
        row = Document.objects.using(db).filter(pk=7).values_list("title", "fence").first()
        return row and (int(row[0]), row[1])


class PlainSave(Race):
    """Not fenced: it may overwrite the row, and must not lower its fence."""

    def earlier(self, db):
        row = Entry.objects.using(db).get(pk=7)
        row.number = 2
        row.save()

    def written(self, db):
        return 3, Entry.objects.using(db).get(pk=7).fence


RACES = [
    *Race.__subclasses__(),
    *SaveOfANewRow.__subclasses__(),
    *Child.__subclasses__(),
]
LEVELS = [
    *(("postgres", level) for level in ("read committed", "repeatable read", "serializable")),
    *(("mariadb", level) for level in ("read committed", "repeatable read")),
]


@pytest.fixture(params=LEVELS, ids=" at ".join)
def db(request):
    """The alias of an empty database, at each level of isolation."""
    server, level = request.param
    alias = request.getfixturevalue(f"{server}_database")
    with request.getfixturevalue("django_db_blocker").unblock(), isolated(alias, level) as db:
        empty(db)
        yield db
        empty(db)
        connections[alias].close()


@pytest.fixture(params=RACES, ids=lambda race: race.__name__)
def race(request):
    return request.param()


@dataclass
class Outcome:
    done: bool
    """Whether the write was committed."""


def attempt(write, db) -> Outcome:
    # A conflict of transactions is Django's OperationalError, and the user must retry. If
    # a transaction does not see the conflicting row, PostgreSQL raises IntegrityError.
    conflicts = (OperationalError,) if "committed" in db else (OperationalError, IntegrityError)
    try:
        return Outcome(done=write(db) is not False)
    except (StaleFence, *conflicts):
        return Outcome(done=False)


def read_then(write):
    """In one transaction that has already read the rows: REPEATABLE READ keeps that snapshot."""

    def both(db):
        with transaction.atomic(using=db):
            list(Entry.objects.using(db).all())
            list(Letter.objects.using(db).all())
            write(db)

    return both


def is_overwritten(race, db, later: Outcome) -> bool:
    return later.done and race.written(db) != (3, THREE)


@contextmanager
def before_statement(number, db, act):
    """Call ``act`` before the connection executes the statement with this number."""
    seen = 0

    def count(execute, sql, params, many, context):
        nonlocal seen
        seen += 1
        if seen == number:
            act()
        return execute(sql, params, many, context)

    with connections[db].execute_wrapper(count):
        yield


def test_a_later_holder_between_any_two_statements_is_not_overwritten(race, db):
    earlier = race.earlier if "committed" in db else read_then(race.earlier)
    with ThreadPoolExecutor(1) as elsewhere:
        try:
            for number in range(1, 50):
                empty(db)
                race.prepare(db)
                running = []

                def intervene(running=running):
                    running.append(elsewhere.submit(attempt, race.later, db))
                    wait_until_done_or_blocked(running[0], db)

                with before_statement(number, db, intervene):
                    attempt(earlier, db)
                if not running:
                    break
                overwritten = is_overwritten(race, db, running[0].result(60))
                assert not overwritten, f"when it writes before statement {number}"
            assert number > 2, "the later holder was placed at least before two statements"
        finally:
            elsewhere.submit(connections.close_all).result(60)


def wait_until_done_or_blocked(running, db):
    monitor = connections.create_connection(db)
    try:
        deadline = time.monotonic() + 60
        while not running.done() and not is_a_transaction_blocked(monitor):
            assert time.monotonic() < deadline
            time.sleep(0.002)
    finally:
        monitor.close()


@pytest.mark.timeout(120 + ROUNDS)
@pytest.mark.rounds
def test_at_random_times_the_later_holder_is_never_overwritten(race, db, record_property):
    overwritten, outcomes = 0, Counter()
    meet = threading.Barrier(2)

    def run(write):
        meet.wait(60)
        return attempt(write, db)

    with ThreadPoolExecutor(2) as pool:
        try:
            for _ in range(ROUNDS):
                empty(db)
                race.prepare(db)
                results = list(pool.map(run, [race.earlier, race.later]))
                overwritten += is_overwritten(race, db, results[1])
                outcomes[tuple(result.done for result in results)] += 1
        finally:
            close = threading.Barrier(2)
            list(pool.map(lambda _: (close.wait(60), connections.close_all()), range(2)))
    record_property("overwritten", overwritten)
    record_property("rounds by who wrote (earlier, later)", dict(outcomes))
    assert (overwritten, outcomes.total()) == (0, ROUNDS)
