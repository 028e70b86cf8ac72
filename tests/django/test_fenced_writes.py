"""Fenced writes of models and query sets: each is fenced, or refused without any change."""

# ruff: noqa: ARG001, ARG002 - fixtures act by being named
from __future__ import annotations

import uuid

import pytest
from asgiref.sync import async_to_sync
from django.db import DatabaseError, IntegrityError, connection, connections, transaction
from django.db.models import Count, Exists, F, OuterRef
from django.db.models.signals import post_save
from django.test.utils import CaptureQueriesContext
from testsite.models import (
    Amendment,
    Booking,
    Branch,
    Contract,
    Document,
    Entry,
    Letter,
    Parcel,
    Reminder,
    Tag,
)

from syncguard import LockError, format_fence
from syncguard_django.fencing import NO_FENCE, FencedQuerySet, StaleFence, fenced_save
from syncguard_django.fencing.row_claims import claim

ONE, TWO, THREE = (format_fence(number) for number in (1, 2, 3))


@pytest.fixture
def entries(database):
    """Three rows: ``low`` with fence 1, ``mine`` with fence 2, ``high`` with fence 3."""
    for text, fence in (("low", ONE), ("mine", TWO), ("high", THREE)):
        Entry(text=text).save_fenced(fence, using=database)
    return Entry.objects.using(database)


def written(entries):
    return {row.text: (row.number, row.fence) for row in entries.order_by("pk")}


UNCHANGED = {"low": (0, ONE), "mine": (0, TWO), "high": (0, THREE)}


# Claims


def test_a_claim_of_rows_that_may_all_be_written_is_one_statement(
    entries, database, django_assert_num_queries
):
    keys = [row.pk for row in entries.exclude(text="high")]
    with transaction.atomic(using=database):
        with django_assert_num_queries(1, connection=connections[database]):
            assert claim(Entry, keys, TWO, database) == 2
    assert written(entries) == UNCHANGED | {"low": (0, TWO)}


def test_a_refused_claim_names_the_fence_of_the_later_holder(entries, database):
    keys = [row.pk for row in entries]
    with pytest.raises(StaleFence) as raised, transaction.atomic(using=database):
        claim(Entry, keys, TWO, database)
    assert raised.value.seen == THREE
    assert written(entries) == UNCHANGED


def test_only_mysql_has_to_lock_rows_to_read_the_fence_of_the_later_holder(entries, database):
    keys = [row.pk for row in entries]
    with CaptureQueriesContext(connections[database]) as statements:
        with pytest.raises(StaleFence), transaction.atomic(using=database):
            claim(Entry, keys, TWO, database)
    locks = any("FOR UPDATE" in statement["sql"] for statement in statements)
    assert locks == (connections[database].vendor == "mysql")


# Models


def test_a_fenced_save_for_asyncio(database):
    row = Entry(text="a")
    async_to_sync(row.asave_fenced)(TWO, using=database)
    assert row.fence == Entry.objects.using(database).get().fence == TWO
    with pytest.raises(StaleFence):
        async_to_sync(row.asave_fenced)(ONE, using=database)


def test_a_fenced_delete_of_an_object(entries, database):
    low, high = entries.get(text="low"), entries.get(text="high")
    with pytest.raises(StaleFence):
        high.delete_fenced(TWO)
    assert low.delete_fenced(TWO)[0] == 1
    with pytest.raises(StaleFence):
        async_to_sync(high.adelete_fenced)(TWO)
    assert set(written(entries)) == {"mine", "high"}
    async_to_sync(high.adelete_fenced)(THREE)
    assert set(written(entries)) == {"mine"}


def test_a_fenced_delete_of_an_object_without_a_row(database):
    assert Entry(pk=7).delete_fenced(ONE, using=database) == (0, {})
    with pytest.raises(ValueError, match="can't be deleted"):
        Entry().delete_fenced(ONE, using=database)


def test_a_stale_save_inside_a_transaction_leaves_it_usable(entries, database):
    with transaction.atomic(using=database):
        with pytest.raises(StaleFence):
            entries.get(text="high").save_fenced(ONE)
        entries.filter(text="low").update(number=1)
    assert written(entries)["low"] == (1, ONE)


def test_a_fenced_save_with_update_fields_of_a_deleted_row_raises(database):
    with pytest.raises(DatabaseError, match="did not affect any rows"):
        Entry(pk=7, text="a").save_fenced(ONE, using=database, update_fields=["text"])
    assert not Entry.objects.using(database).exists()


def test_a_failed_save_leaves_the_object_as_it_was(database):
    row = Entry(pk=7, text="a", number="many")
    with pytest.raises(ValueError, match="many"):
        row.save_fenced(ONE, using=database)
    assert (row.fence, row._state.adding) == (NO_FENCE, True)


def test_an_object_without_its_fence_can_be_saved_fenced(entries, database):
    row = entries.defer("fence").get(text="mine")
    row.number = 5
    row.save_fenced(TWO)
    assert (row.fence, written(entries)["mine"]) == (TWO, (5, TWO))
    stale = entries.defer("fence").get(text="high")
    with pytest.raises(StaleFence):
        stale.save_fenced(ONE)
    assert "fence" in stale.get_deferred_fields()


def test_a_key_with_a_default_updates_the_existing_row(database):
    key = uuid.uuid4()
    Parcel(pk=key).save_fenced(TWO, using=database)
    Parcel(pk=key, weight=5).save_fenced(THREE, using=database)
    with pytest.raises(StaleFence):
        Parcel(pk=key, weight=9).save_fenced(ONE, using=database)
    row = Parcel.objects.using(database).get()
    assert (row.weight, row.fence) == (5, THREE)


def test_a_key_of_several_columns(database):
    Booking(tenant=1, number=1).save_fenced(TWO, using=database)
    row = Booking(tenant=1, number=1, seats=4)
    with pytest.raises(StaleFence):
        row.save_fenced(ONE, using=database)
    row.save_fenced(THREE, using=database)
    bookings = Booking.objects.using(database)
    with pytest.raises(StaleFence):
        bookings.fenced(TWO).filter(tenant=1).update(seats=9)
    with pytest.raises(StaleFence):
        bookings.fenced(TWO).delete()
    assert bookings.fenced(THREE).annotate(n=F("seats")).update(seats=F("n") + 1) == 1
    assert bookings.get().seats == 5
    assert bookings.fenced(THREE).delete()[0] == 1


def test_a_key_of_several_columns_that_is_not_complete_has_no_row(database):
    with pytest.raises(IntegrityError):
        Booking(tenant=1).save_fenced(ONE, using=database)


# Multi-table inheritance: the parent owns the column


@pytest.mark.parametrize("model", [Letter, Reminder])
def test_a_child_is_fenced_by_its_parents_column(database, model):
    rows = model.objects.using(database)
    model(pk=7, title="first", pages=1).save_fenced(TWO, using=database)
    for stale in (rows.get(pk=7), model(pk=7)):
        stale.title, stale.pages = "late", 9
        with pytest.raises(StaleFence):
            stale.save_fenced(ONE, using=database)
    again = model(pk=7, title="again", pages=2)
    again.save_fenced(THREE, using=database)
    assert again.fence == THREE
    row = rows.get(pk=7)
    assert (row.title, row.pages, row.fence) == ("again", 2, THREE)
    assert Document.objects.using(database).get(pk=7).fence == THREE


def test_a_child_can_be_added_to_an_existing_parent_with_the_fence(database):
    Document(pk=7, title="parent").save_fenced(TWO, using=database)
    with pytest.raises(StaleFence):
        Letter(pk=7, title="late").save_fenced(ONE, using=database)
    with pytest.raises(StaleFence):
        Letter.objects.using(database).fenced(ONE).create(pk=7, title="late")
    Letter(pk=7, title="child", pages=3).save_fenced(THREE, using=database)
    assert Letter.objects.using(database).get().pages == 3
    Document(pk=8).save_fenced(TWO, using=database)
    Letter.objects.using(database).fenced(TWO).create(pk=8, title="child")
    assert Document.objects.using(database).get(pk=8).title == "child"


def test_a_child_with_a_key_of_its_own_is_added_to_its_parent_with_the_fence(database):
    Document(pk=7, title="parent").save_fenced(TWO, using=database)
    contracts = Contract.objects.using(database)
    with pytest.raises(StaleFence):
        contracts.fenced(ONE).create(document_id=7, title="late")
    contract = contracts.fenced(THREE).create(document_id=7, title="child", price=3)
    parent = Document.objects.using(database).get()
    assert (contract.document_id, parent.title, parent.fence) == (7, "child", THREE)


@pytest.mark.parametrize("model", [Contract, Amendment])
@pytest.mark.parametrize("name", ["pk", "number"])
def test_a_child_with_a_key_of_its_own_is_fenced_by_the_parent_that_it_has(database, model, name):
    Document(pk=1, title="other").save_fenced(ONE, using=database)
    model(number=1, document_id=7, title="first", price=1).save_fenced(THREE, using=database)
    with pytest.raises(StaleFence):
        model(**{name: 1}, title="late", price=9).save_fenced(TWO, using=database)
    with pytest.raises(StaleFence):
        model(**{name: 1}).delete_fenced(TWO, using=database, keep_parents=True)
    stored = model.objects.using(database).get()
    assert (stored.document_id, stored.title, stored.price) == (7, "first", 1)


def test_the_key_of_a_child_is_not_taken_for_the_key_of_its_parent(database):
    Document(pk=7, title="other").save_fenced(THREE, using=database)
    # The key 7 is the key of a Contract. Django gives its Document a key of its own.
    Amendment(contract_ptr_id=7, title="first").save_fenced(ONE, using=database)
    titles = Document.objects.using(database).values_list("title", "fence")
    assert set(titles) == {("other", THREE), ("first", ONE)}


def test_a_parent_that_another_holder_inserts_meanwhile_is_not_overwritten(database, monkeypatch):
    # The holder with fence 3 inserts only the parent, after the holder with fence 2 found no row.
    letter = Letter(pk=7, title="late", pages=1)
    insert = fenced_save._save_new

    def insert_late(row, using):
        if row is letter:
            Document(pk=7, title="other").save_fenced(THREE, using=database)
        insert(row, using)

    monkeypatch.setattr(fenced_save, "_save_new", insert_late)
    with pytest.raises((StaleFence, IntegrityError)):
        letter.save_fenced(TWO, using=database)


@pytest.mark.parametrize("values", [{"pages": 9}, {"title": "x"}, {"pages": 9, "title": "x"}])
def test_an_update_of_children_is_fenced(database, values):
    Letter(pk=7).save_fenced(TWO, using=database)
    Letter(pk=8).save_fenced(THREE, using=database)
    letters = Letter.objects.using(database)
    with pytest.raises(StaleFence):
        letters.fenced(TWO).update(**values)
    assert set(letters.values_list("title", "pages", "fence")) == {("", 0, TWO), ("", 0, THREE)}
    assert letters.fenced(TWO).filter(pk=7).update(**values) == 1
    assert letters.fenced(THREE).update(**values) == 2
    for name, value in values.items():
        assert set(letters.values_list(name, "fence")) == {(value, THREE)}


def test_query_sets_of_children_with_a_key_of_their_own_are_fenced_by_their_parents(database):
    Document(pk=1, title="other").save_fenced(THREE, using=database)
    Contract(number=1, document_id=7).save_fenced(TWO, using=database)
    contracts = Contract.objects.using(database)
    for write in (lambda rows: rows.update(price=9), lambda rows: rows.delete()):
        with pytest.raises(StaleFence):
            write(contracts.fenced(ONE))
    assert contracts.fenced(TWO).update(price=9) == 1
    assert contracts.get().price == 9
    assert contracts.fenced(TWO).delete()[1] == {"testsite.Contract": 1, "testsite.Document": 1}
    assert Document.objects.using(database).get().title == "other"


def test_a_delete_of_children_is_fenced(database):
    Letter(pk=7).save_fenced(TWO, using=database)
    letters = Letter.objects.using(database)
    with pytest.raises(StaleFence):
        letters.fenced(ONE).delete()
    assert letters.fenced(TWO).delete()[1] == {"testsite.Letter": 1, "testsite.Document": 1}


# Query sets


def test_an_update_over_a_join_is_fenced(entries, database):
    branch = Branch.objects.using(database).create(name="north")
    entries.all().update(branch=branch)
    north = entries.filter(branch__name="north")
    with pytest.raises(StaleFence):
        north.fenced(TWO).update(number=9)
    assert written(entries) == UNCHANGED
    assert north.fenced(TWO).exclude(text="high").update(number=9) == 2
    assert written(entries) == {"low": (9, TWO), "mine": (9, TWO), "high": (0, THREE)}


def test_an_update_by_an_annotation_is_fenced(entries, database):
    counted = entries.annotate(tags=Count("tag"), next=F("number") + 1)
    with pytest.raises(StaleFence):
        counted.filter(tags=0).fenced(TWO).update(number=F("next"))
    assert written(entries) == UNCHANGED
    lower = counted.filter(tags=0).exclude(text="high")
    assert lower.fenced(TWO).update(number=F("next")) == 2
    assert written(entries)["low"] == (1, TWO)


@pytest.mark.parametrize("annotations", [{}, {"next": F("number") + 1}], ids=["plain", "annotated"])
def test_rows_that_were_claimed_are_written_by_their_keys_alone(entries, annotations):
    """A condition may not be true again: writing the rows before may have changed it."""
    lows = entries.annotate(**annotations).filter(text="low")
    [mine] = entries.filter(text="mine")
    assert lows._only([mine.pk]).get() == mine


UPDATES = {
    "of one table": (lambda: Entry.objects.filter(text="low"), {"number": 1}, 1),
    "of all rows": (lambda: Entry.objects.all(), {"number": 1}, 1),
    "over a join": (lambda: Entry.objects.filter(branch__name="north"), {"number": 1}, 2),
    "by an annotation": (lambda: Entry.objects.annotate(n=F("number")), {"number": F("n")}, 2),
    "of distinct rows": (lambda: Entry.objects.distinct(), {"number": 1}, 2),
    "of a parent's column": (lambda: Letter.objects.all(), {"title": "x"}, 2),
    "of a child's column": (lambda: Letter.objects.all(), {"pages": 1}, 2),
}
"""The query set, the values, and the number of statements: one, or a claim before it."""


@pytest.mark.django_db
@pytest.mark.parametrize("name", UPDATES)
def test_the_statement_that_writes_has_the_condition_or_follows_a_claim(name):
    make, values, count = UPDATES[name]
    Entry(text="low", branch=Branch.objects.create(name="north")).save_fenced(ONE)
    Letter(pk=7).save_fenced(ONE)
    with CaptureQueriesContext(connection) as captured:
        assert make().fenced(TWO).update(**values) == 1
    writes = [query["sql"] for query in captured if query["sql"].startswith("UPDATE")]
    assert len(writes) == count
    before_where, condition = writes[0].split(" WHERE ")
    assert f"<= '{TWO}'" in condition
    is_claim = before_where.count(" = ") == 1 and '"fence" = ' in before_where
    assert is_claim is (count == 2)


def test_a_late_update_that_matches_no_row_raises_nothing(entries):
    assert entries.none().fenced(ONE).update(number=9) == 0
    assert entries.filter(branch__name="nowhere").fenced(ONE).update(number=9) == 0
    assert entries.none().fenced(ONE).delete() == (0, {})
    assert written(entries) == UNCHANGED


def test_many_rows_are_written_in_batches(database):
    entries = Entry.objects.using(database)
    entries.bulk_create([Entry(text=str(number)) for number in range(1_100)])
    branch = Branch.objects.using(database).create(name="north")
    entries.update(branch=branch)
    assert entries.filter(branch__name="north").fenced(TWO).update(number=1) == 1_100
    assert set(entries.values_list("number", "fence")) == {(1, TWO)}
    last = entries.order_by("pk").last()
    last.save_fenced(THREE)
    with pytest.raises(StaleFence):
        entries.fenced(TWO).delete()
    assert entries.count() == 1_100
    assert entries.fenced(THREE).delete()[0] == 1_100


def test_the_rows_to_delete_are_read_once_and_not_for_each_batch(database):
    entries = Entry.objects.using(database)
    entries.bulk_create([Entry(pk=number, text=str(number)) for number in range(1, 1_002)])
    followers = entries.filter(Exists(entries.filter(pk=OuterRef("pk") - 1)))
    assert followers.fenced(ONE).delete()[0] == 1_000
    assert entries.get().pk == 1


def test_the_write_goes_to_the_database_for_writes(entries, settings, database):
    settings.DATABASE_ROUTERS = [WritesTo(database)]
    assert Entry.objects.filter(text="low").fenced(TWO).update(number=1) == 1
    assert Entry.objects.filter(text="low", branch=None).fenced(TWO).delete()[0] == 1
    Entry.objects.fenced(TWO).create(text="new")
    Entry.objects.fenced(TWO).update_or_create(text="mine", defaults={"number": 2})
    new = entries.get(text="new")
    new.number = 4
    Entry.objects.fenced(TWO).bulk_update([new], ["number"])
    assert written(entries) == {"mine": (2, TWO), "high": (0, THREE), "new": (4, TWO)}


class WritesTo:
    """Reads go to a replica that cannot be reached."""

    def __init__(self, database):
        self.database = database

    def db_for_read(self, model, **hints):
        return "replica"

    def db_for_write(self, model, **hints):
        return self.database


def test_create_writes_the_fence(entries):
    row = entries.fenced(TWO).create(text="new")
    assert row.fence == entries.get(text="new").fence == TWO
    with pytest.raises(IntegrityError):
        entries.fenced(THREE).create(text="mine")
    assert written(entries)["mine"] == (0, TWO)


def test_get_or_create_writes_the_fence_of_what_it_creates(entries):
    row, created = entries.fenced(TWO).get_or_create(text="new")
    assert (created, row.fence, written(entries)["new"]) == (True, TWO, (0, TWO))
    row, created = entries.fenced(ONE).get_or_create(text="high")
    assert (created, row.fence) == (False, THREE)


def test_update_or_create_is_fenced(entries):
    mine = entries.fenced(TWO)
    row, created = mine.update_or_create(text="low", defaults={"number": lambda: 5})
    assert (created, row.fence, written(entries)["low"]) == (False, TWO, (5, TWO))
    row, created = mine.update_or_create(text="new", defaults={"number": 6})
    assert (created, written(entries)["new"]) == (True, (6, TWO))
    mine.update_or_create(text="newer", defaults={}, create_defaults={"number": 7})
    assert written(entries)["newer"] == (7, TWO)
    with pytest.raises(StaleFence):
        mine.update_or_create(text="high", defaults={"number": 9})
    assert written(entries)["high"] == (0, THREE)


def test_bulk_create_writes_the_fence(entries):
    rows = entries.fenced(TWO).bulk_create(Entry(text=text) for text in "ab")
    assert {row.fence for row in rows} == {TWO}
    assert (written(entries)["a"], written(entries)["b"]) == ((0, TWO), (0, TWO))


def test_bulk_create_that_fails_leaves_the_objects_as_they_were(entries):
    rows = [Entry(text="new"), Entry(text="mine")]
    with pytest.raises(IntegrityError):
        entries.fenced(TWO).bulk_create(rows)
    assert {row.fence for row in rows} == {NO_FENCE}
    assert written(entries) == UNCHANGED


def test_bulk_create_may_ignore_conflicts(entries):
    entries.fenced(TWO).bulk_create([Entry(text="high", number=9)], ignore_conflicts=True)
    assert written(entries) == UNCHANGED


def test_an_upsert_is_refused(entries):
    with pytest.raises(LockError, match="cannot be fenced: use update_or_create"):
        entries.fenced(THREE).bulk_create(
            [Entry(text="low")],
            update_conflicts=True,
            update_fields=["number"],
            unique_fields=["text"],
        )


def test_an_upsert_without_fields_is_refused_by_django(entries):
    with pytest.raises(ValueError, match="Fields that will be updated"):
        entries.bulk_create([Entry(text="low")], update_conflicts=True)


def test_bulk_update_says_to_leave_the_fence_out(entries):
    with pytest.raises(LockError, match="leave it out of fields"):
        entries.fenced(TWO).bulk_update(list(entries), ["fence"])


def test_templates_cannot_call_what_writes_and_managers_do_not_delete():
    for method in (FencedQuerySet.forget_fences, FencedQuerySet.aforget_fences):
        assert method.alters_data
    assert not hasattr(Entry.objects, "delete")


def test_bulk_update_is_fenced(entries, database):
    rows = list(entries.all())
    for row in rows:
        row.number = 9
    with pytest.raises(StaleFence):
        entries.fenced(TWO).bulk_update(rows, ["number"], batch_size=1)
    assert written(entries) == UNCHANGED
    with transaction.atomic(using=database), pytest.raises(StaleFence):
        entries.fenced(TWO).bulk_update(rows, ["number"])
    assert entries.fenced(THREE).bulk_update(rows, ["number"]) == 3
    assert {row.fence for row in rows} == {THREE}
    assert set(written(entries).values()) == {(9, THREE)}


@pytest.mark.parametrize(
    "write",
    [
        lambda rows: rows.update(number=1, fence=THREE),
        lambda rows: rows.create(text="new", fence=THREE),
        lambda rows: rows.get_or_create(text="new", defaults={"fence": THREE}),
        lambda rows: rows.update_or_create(text="low", defaults={"fence": THREE}),
        lambda rows: rows.bulk_update(list(rows), ["fence"]),
    ],
)
def test_another_fence_than_the_bound_one_is_refused(entries, write):
    with pytest.raises(LockError, match=r"fenced\(\) sets the fence"):
        write(entries.fenced(TWO))
    assert written(entries) == UNCHANGED


def test_every_derived_query_set_keeps_the_fence(entries):
    fenced, other = entries.fenced(TWO), entries.filter(text="high")
    made = [
        *(fenced.all(), fenced.filter(pk=1), fenced.using("default"), fenced.none()),
        *(fenced | other, other | fenced, fenced & other, other & fenced, fenced ^ other),
        *(fenced.none() | other, other | fenced.none(), other[:1] | fenced, fenced[:1] | other),
        *(fenced.union(other), fenced.order_by("pk"), fenced.values("pk"), fenced.distinct()),
    ]
    assert {type(rows) for rows in made} == {FencedQuerySet}
    assert {rows._fence for rows in made} == {TWO}
    assert (other | entries.all())._fence is None


def test_query_sets_with_two_fences_cannot_be_combined(entries):
    with pytest.raises(LockError, match="two different fences"):
        entries.fenced(ONE) | entries.fenced(TWO)


def test_signals_are_sent_once(entries, database):
    seen = []

    def receive(created, **_kwargs):
        seen.append(created)

    post_save.connect(receive, sender=Entry)
    try:
        entries.get(text="low").save_fenced(TWO)
        entries.fenced(TWO).create(text="new")
    finally:
        post_save.disconnect(receive, sender=Entry)
    assert seen == [False, True]


def test_rows_behind_a_related_manager_can_be_fenced(entries, database):
    tag = Tag.objects.using(database).create()
    tag.entries.add(*entries.all())
    with pytest.raises(StaleFence):
        tag.entries.fenced(TWO).update(number=1)
    assert tag.entries.fenced(THREE).update(number=1) == 3
