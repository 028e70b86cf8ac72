"""Every method of Django that writes is listed here: fenced, refused, or unable to lower a fence.

The tests check all methods of the installed Django. If a new release adds a method, they fail until
it is listed here.
"""

# ruff: noqa: ARG001, ARG005 - every way to write takes the same arguments
from __future__ import annotations

import pytest
from asgiref.sync import async_to_sync
from django.db import IntegrityError, connections, models
from testsite.models import Branch, Entry, Tag

from syncguard import LockError, format_fence
from syncguard_django.fencing import FencedModel, FencedQuerySet, StaleFence, fenced_queries

ONE, TWO = (format_fence(number) for number in (1, 2))


def writing_methods(thing):
    """The names of the methods with ``alters_data``, which templates must not call."""
    return {
        name
        for name in dir(thing)
        if name not in ("objects", "pk") and getattr(getattr(thing, name), "alters_data", False)
    }


def public_methods(thing):
    return {
        name
        for name in dir(thing)
        if not name.startswith("_") and callable(getattr(thing, name, None))
    }


@pytest.fixture
def row(database):
    """A row that a holder with fence 2 has written."""
    row = Entry(pk=7, text="a", number=2)
    row.save_fenced(TWO, using=database)
    return row


def stored(row):
    return Entry.objects.using(row._state.db).filter(pk=7).values("number", "text", "fence").first()


def objects_with_a_lower_fence(number=9):
    """Objects with a lower fence than their row."""
    return [Entry(pk=7, text="a", number=number)]


# Query sets that are bound to a fence

WRITTEN = {"number": 2, "text": "a", "fence": TWO}

FENCED = {
    "update": (lambda rows: rows.update(number=9), StaleFence),
    "delete": (lambda rows: rows.delete(), StaleFence),
    "update_or_create": (
        lambda rows: rows.update_or_create({"number": 9}, text="a"),
        StaleFence,
    ),
    "bulk_update": (
        lambda rows: rows.bulk_update(objects_with_a_lower_fence(), ["number"]),
        StaleFence,
    ),
    "create": (lambda rows: rows.create(pk=7, text="b", number=9), IntegrityError),
    "bulk_create": (lambda rows: rows.bulk_create(objects_with_a_lower_fence()), IntegrityError),
    "get_or_create": (lambda rows: rows.get_or_create({"number": 9}, text="a"), None),
    "aupdate": (lambda rows: async_to_sync(rows.aupdate)(number=9), StaleFence),
    "adelete": (lambda rows: async_to_sync(rows.adelete)(), StaleFence),
    "aupdate_or_create": (
        lambda rows: async_to_sync(rows.aupdate_or_create)({"number": 9}, text="a"),
        StaleFence,
    ),
    "abulk_update": (
        lambda rows: async_to_sync(rows.abulk_update)(objects_with_a_lower_fence(), ["number"]),
        StaleFence,
    ),
    "acreate": (
        lambda rows: async_to_sync(rows.acreate)(pk=7, text="b", number=9),
        IntegrityError,
    ),
    "abulk_create": (
        lambda rows: async_to_sync(rows.abulk_create)(objects_with_a_lower_fence()),
        IntegrityError,
    ),
    "aget_or_create": (
        lambda rows: async_to_sync(rows.aget_or_create)({"number": 9}, text="a"),
        None,
    ),
    "forget_fences": (lambda rows: rows.forget_fences(), LockError),
    "aforget_fences": (lambda rows: async_to_sync(rows.aforget_fences)(), LockError),
    "_update": (
        lambda rows: rows._update([(Entry._meta.get_field("number"), None, 9)]),
        LockError,
    ),
    "_raw_delete": (lambda rows: rows._raw_delete(rows.db), LockError),
    "_insert": (
        lambda rows: rows._insert(
            objects_with_a_lower_fence(), Entry._meta.concrete_fields, using=rows.db
        ),
        LockError,
    ),
}

READING = {
    *("aaggregate", "acontains", "acount", "aearliest", "aexists", "aexplain", "afirst", "aget"),
    *("aggregate", "ain_bulk", "aiterator", "alast", "alatest", "alias", "all", "annotate"),
    *("as_manager", "complex_filter", "contains", "count", "dates", "datetimes", "defer"),
    *("difference", "distinct", "earliest", "exclude", "exists", "explain", "extra", "fenced"),
    *("fetch_mode", "filter", "first", "get", "in_bulk", "intersection", "iterator", "last"),
    *("latest", "none", "only", "order_by", "prefetch_related", "raw", "resolve_expression"),
    *("reverse", "select_for_update", "select_related", "union", "using", "values", "values_list"),
}


def test_every_method_of_a_query_set_is_known():
    assert writing_methods(FencedQuerySet) == set(FENCED)
    assert public_methods(FencedQuerySet) <= set(FENCED) | READING


@pytest.mark.parametrize("name", FENCED)
def test_a_fenced_query_set_does_not_overwrite_a_higher_fence(row, name):
    write, error = FENCED[name]
    rows = Entry.objects.using(row._state.db).fenced(ONE)
    if error is None:
        write(rows)
    else:
        with pytest.raises(error):
            write(rows)
    assert stored(row) == WRITTEN


def test_a_write_method_that_a_later_django_adds_is_refused(monkeypatch):
    def overwrite(self):
        return "written"

    overwrite.alters_data = True
    monkeypatch.setattr(models.QuerySet, "overwrite", overwrite, raising=False)
    fenced_queries._refuse_other_writes()
    try:
        assert Entry.objects.all().overwrite() == "written"
        with pytest.raises(LockError, match=r"overwrite\(\) cannot be fenced"):
            Entry.objects.fenced(ONE).overwrite()
    finally:
        del FencedQuerySet.overwrite


# Objects

OBJECTS = {
    "save": (lambda late, db: late.save(using=db), None),
    "asave": (lambda late, db: async_to_sync(late.asave)(using=db), None),
    "save_base": (lambda late, db: late.save_base(using=db), None),
    "delete": (lambda late, db: late.delete(using=db), None),
    "adelete": (lambda late, db: async_to_sync(late.adelete)(using=db), None),
    "save_fenced": (lambda late, db: late.save_fenced(ONE, using=db), StaleFence),
    "asave_fenced": (lambda late, db: async_to_sync(late.asave_fenced)(ONE, using=db), StaleFence),
    "delete_fenced": (lambda late, db: late.delete_fenced(ONE, using=db), StaleFence),
    "adelete_fenced": (
        lambda late, db: async_to_sync(late.adelete_fenced)(ONE, using=db),
        StaleFence,
    ),
}

READING_OBJECTS = {
    *("adelete", "arefresh_from_db", "check", "clean", "clean_fields", "date_error_message"),
    *("from_db", "full_clean", "get_constraints", "get_deferred_fields", "prepare_database_save"),
    *("refresh_from_db", "serializable_value", "unique_error_message", "validate_constraints"),
    *("validate_unique", "Meta"),
}


def test_every_method_of_an_object_is_known():
    assert writing_methods(FencedModel) == set(OBJECTS)
    assert public_methods(FencedModel) <= set(OBJECTS) | READING_OBJECTS


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_never_lowers_a_fence(row, name):
    write, error = OBJECTS[name]
    (late,) = objects_with_a_lower_fence()
    if error is None:
        write(late, row._state.db)
        assert stored(row) in (None, {**WRITTEN, "number": 9})
    else:
        with pytest.raises(error):
            write(late, row._state.db)
        assert stored(row) == WRITTEN


# Managers, of the model and of related rows: not bound to a fence


def upsert(rows):
    features = connections[rows.all().db].features
    unique = ["text"] if features.supports_update_conflicts_with_target else None
    return {
        "update_conflicts": True,
        "update_fields": ["number", "fence"],
        "unique_fields": unique,
    }


MANAGED = {
    "create": lambda rows, late: rows.create(text="b", number=9),
    "bulk_create": lambda rows, late: rows.bulk_create([late], **upsert(rows)),
    "bulk_update": lambda rows, late: rows.bulk_update([late], ["number", "fence"]),
    "get_or_create": lambda rows, late: rows.get_or_create(text="a"),
    "update_or_create": lambda rows, late: rows.update_or_create(
        defaults={"number": 9, "fence": ONE}, text="a"
    ),
    "update": lambda rows, late: rows.update(number=9, fence=ONE),
    "forget_fences": None,  # lowers fences: that is its purpose
    "_update": lambda rows, late: rows._update(
        [(Entry._meta.get_field("number"), None, 9), (Entry._meta.get_field("fence"), None, ONE)]
    ),
    "_insert": lambda rows, late: rows._insert(
        [Entry(pk=8, text="b")], Entry._meta.concrete_fields, using=rows.all().db
    ),
    "add": lambda rows, late: rows.add(late),
    "remove": lambda rows, late: rows.remove(late),
    "set": lambda rows, late: rows.set([late]),
    "clear": lambda rows, late: rows.clear(),
}


def managers(database):
    branch = Branch.objects.using(database).create()
    tag = Tag.objects.using(database).create()
    return [Entry.objects.db_manager(database), branch.entries, branch.notes, tag.entries]


@pytest.mark.django_db
def test_every_method_of_every_manager_is_known():
    for manager in managers("default"):
        # The last one is private: only Django's related managers call it.
        found = writing_methods(manager) - {"_clear"}
        assert found <= {*MANAGED, *(f"a{name}" for name in MANAGED)}, manager


WRITES_OF_MANAGERS = [name for name, write in MANAGED.items() if write]
KINDS = ["of the model", "foreign key", "generic", "many to many"]


@pytest.mark.parametrize("name", WRITES_OF_MANAGERS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_manager_lowers_a_fence(row, name, kind):
    manager = dict(zip(KINDS, managers(row._state.db), strict=True))[kind]
    if kind == "of the model" and name in ("add", "remove", "set", "clear"):
        assert not hasattr(manager, name)
        return
    if kind != "of the model":
        manager.add(row)
    late = Entry.objects.using(row._state.db).get(pk=7)
    late.number, late.fence = 9, ONE
    MANAGED[name](manager, late)
    assert stored(row) is None or stored(row)["fence"] == TWO
