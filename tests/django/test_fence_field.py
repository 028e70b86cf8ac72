"""No UPDATE of Django lowers a fence, on any database; an INSERT writes the given value."""

# ruff: noqa: ARG001 - fixtures act by being named
from __future__ import annotations

import copy
import json
import pickle

import pytest
from asgiref.sync import async_to_sync
from django.contrib.admin import ModelAdmin, site
from django.core.exceptions import SynchronousOnlyOperation
from django.core.management import call_command
from django.db import connections, models
from django.db.migrations.autodetector import MigrationAutodetector
from django.db.migrations.state import ModelState, ProjectState
from django.db.models import F, Value
from django.db.models.signals import post_save
from django.db.utils import IntegrityError
from django.forms import modelform_factory
from django.test.utils import CaptureQueriesContext
from testsite.models import Branch, Entry, Letter

from syncguard import LockError, format_fence
from syncguard_django.fencing import NO_FENCE, FencedModel, FenceField, StaleFence
from syncguard_django.fencing.fence_field import Exactly

ONE, TWO, THREE = (format_fence(number) for number in (1, 2, 3))


@pytest.fixture
def entries(database):
    return Entry.objects.using(database)


@pytest.fixture
def late(entries, database):
    """An object that was read before a holder with fence 2 wrote its row."""
    Entry(pk=7, text="a").save(using=database)
    late = entries.get(pk=7)
    entries.get(pk=7).save_fenced(TWO, using=database)
    late.number = 5
    return late


# Each function writes the number 5 with an object or values that have a lower fence.


def by_save(late, entries):
    late.save()


def by_asave(late, entries):
    async_to_sync(late.asave)()


def by_save_with_the_fence_set_back(late, entries):
    late.fence = ONE
    late.save()


def by_save_with_update_fields(late, entries):
    late.save(update_fields=["number", "fence"])


def by_save_of_a_new_object_with_the_same_key(late, entries):
    Entry(pk=7, text="a", number=5).save(using=entries.db)


def by_save_of_an_object_that_only_has_some_fields(late, entries):
    partial = entries.only("number").get(pk=7)
    partial.number = 5
    partial.save()


def by_save_of_an_object_with_a_deferred_fence(late, entries):
    partial = entries.defer("fence").get(pk=7)
    partial.number, partial.fence = 5, ONE
    partial.save()


def by_a_historical_model_in_a_migration(late, entries):
    state = ProjectState()
    for model in (Branch, Entry):
        state.add_model(ModelState.from_model(model, exclude_rels=True))
    historical = state.apps.get_model("testsite", "Entry")
    historical(pk=7, text="a", number=5).save(using=entries.db)


def by_a_form(late, entries):
    form = modelform_factory(Entry, fields=["number"])({"number": 5}, instance=late)
    form.save()


def by_the_admin(late, entries):
    ModelAdmin(Entry, site).save_model(None, late, None, change=True)


def by_a_serializer(late, entries):
    serializers = pytest.importorskip("rest_framework.serializers")

    class EntrySerializer(serializers.ModelSerializer):
        class Meta:
            model = Entry
            fields = "__all__"

    data = {"number": 5, "fence": ONE}
    serializer = EntrySerializer(late, data=data, partial=True)
    assert serializer.is_valid()
    serializer.save()
    assert serializer.data["fence"] == TWO


def by_a_fixture(late, entries, folder):
    fields = {"text": "a", "number": 5, "fence": ONE}
    fixture = folder / "old.json"
    fixture.write_text(json.dumps([{"model": "testsite.entry", "pk": 7, "fields": fields}]))
    call_command("loaddata", str(fixture), database=entries.db, verbosity=0)


def by_update(late, entries):
    entries.filter(pk=7).update(number=5, fence=ONE)


def by_update_with_an_expression(late, entries):
    entries.filter(pk=7).update(number=F("number") + 5, fence=Value(ONE))


def by_update_or_create(late, entries):
    entries.update_or_create(pk=7, defaults={"number": 5, "fence": ONE})


def by_bulk_update(late, entries):
    late.fence = ONE
    entries.bulk_update([late], ["number", "fence"])


def by_an_upsert(late, entries):
    features = connections[entries.db].features
    unique = ["text"] if features.supports_update_conflicts_with_target else None
    row = Entry(text="a", number=5, fence=ONE)
    entries.bulk_create([row], update_conflicts=True, update_fields=["number", "fence"],
                        unique_fields=unique)  # fmt: skip


def by_a_related_manager(late, entries):
    branch = Branch.objects.using(entries.db).create()
    branch.entries.add(late, bulk=False)


WAYS = [value for name, value in list(globals().items()) if name.startswith("by_")]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_plain_write_changes_the_row_and_not_its_fence(way, late, entries, tmp_path, database):
    way(late, entries, *([tmp_path] if way is by_a_fixture else []))
    row = entries.get(pk=7)
    assert (row.number, row.fence) == (5, TWO)
    with pytest.raises(StaleFence):
        entries.get(pk=7).save_fenced(ONE, using=database)


def test_a_child_of_a_fenced_model_keeps_the_fence_too(database):
    Letter(pk=7).save(using=database)
    letters = Letter.objects.using(database)
    late = letters.get(pk=7)
    letters.get(pk=7).save_fenced(TWO, using=database)
    late.pages = 5
    late.save()
    row = letters.get(pk=7)
    assert (row.pages, row.fence, late.fence) == (5, TWO, TWO)


def test_a_fixture_with_a_higher_fence_raises_the_rows(late, entries, tmp_path):
    fields = {"text": "a", "fence": THREE}
    (tmp_path / "new.json").write_text(
        json.dumps([{"model": "testsite.entry", "pk": 7, "fields": fields}])
    )
    call_command("loaddata", str(tmp_path / "new.json"), database=entries.db, verbosity=0)
    assert entries.get(pk=7).fence == THREE


def test_an_insert_writes_what_is_given(entries, database):
    entries.create(text="created", fence=ONE)
    Entry(text="saved", fence=TWO).save(using=database)
    entries.bulk_create([Entry(text="bulk", fence=THREE), Entry(text="none")])
    assert dict(entries.values_list("text", "fence")) == {
        "created": ONE,
        "saved": TWO,
        "bulk": THREE,
        "none": NO_FENCE,
    }


def test_an_upsert_that_would_only_change_the_fence_is_refused(entries):
    with pytest.raises(LockError, match="an upsert never changes a fence"):
        entries.bulk_create([Entry(text="a")], update_conflicts=True, update_fields=["fence"],
                            unique_fields=["text"])  # fmt: skip


def test_a_filter_with_a_value_of_the_fields_type_compares_that_value(late, entries):
    older = entries.filter(fence__lte=Value(ONE, output_field=FenceField()))
    assert older.update(number=9) == 0


# The fence of the object in memory


def test_after_a_save_the_object_has_the_fence_of_the_row(late, database):
    late.fence = F("fence")
    with CaptureQueriesContext(connections[database]) as queries:
        late.save()
    assert sum("SELECT" in query["sql"] for query in queries) == 0
    assert late.fence == TWO
    with CaptureQueriesContext(connections[database]) as queries:
        assert late.fence == TWO
    assert len(queries) == 0


def test_the_fence_is_read_from_the_database_that_was_written(late, settings, database):
    late.save()
    settings.DATABASE_ROUTERS = [ReadsElsewhere()]
    assert late.fence == TWO
    assert database == late._state.db


class ReadsElsewhere:
    """A replica that cannot be reached."""

    def db_for_read(self, model, **hints):  # noqa: ARG002
        return "replica"


def test_a_copy_and_a_pickled_object_read_the_fence_too(late):
    late.save()
    assert copy.copy(late).fence == TWO
    assert pickle.loads(pickle.dumps(late)).fence == TWO  # noqa: S301


def test_in_asyncio_the_fence_has_to_be_refreshed_explicitly(late):
    async def save():
        await late.asave()
        with pytest.raises(SynchronousOnlyOperation):
            late.fence  # noqa: B018
        await late.arefresh_from_db(fields=["fence"])
        return late.fence

    assert async_to_sync(save)() == TWO


def test_the_object_of_a_deleted_row_keeps_its_last_fence(late, entries):
    late.save()
    entries.all().delete()
    assert late.fence == NO_FENCE


def test_the_next_save_writes_all_fields(late):
    late.save()
    seen = []

    def receive(update_fields, **_kwargs):
        seen.append(update_fields)

    post_save.connect(receive, sender=Entry)
    try:
        late.save()
    finally:
        post_save.disconnect(receive, sender=Entry)
    assert seen == [None]


def test_a_row_can_be_copied_by_setting_its_key_to_none(late, entries):
    late.save()
    late.pk, late.text = None, "copy"
    late.save()
    assert entries.get(text="copy").pk != 7
    assert late.fence == entries.get(text="copy").fence


def test_saving_the_object_of_a_deleted_row_inserts_it_again(late, entries):
    late.save()
    entries.all().delete()
    late.save()
    assert late.fence == entries.get(pk=7).fence == NO_FENCE


# Lowering it on purpose


def test_forgetting_lets_the_rows_accept_any_fence(late, entries, database):
    assert entries.filter(pk=7).forget_fences() == 1
    assert entries.get(pk=7).fence == NO_FENCE
    late.save_fenced(ONE, using=database)
    assert async_to_sync(entries.filter(pk=7).aforget_fences)() == 1


def test_a_fenced_query_set_refuses_forget_fences(entries):
    with pytest.raises(LockError, match=r"forget_fences\(\) cannot be fenced"):
        entries.fenced(ONE).forget_fences()


# Migrations


def test_the_field_deconstructs_to_its_public_name():
    field = FenceField(db_column="token", editable=True)
    assert field.deconstruct()[1:] == (
        "syncguard_django.fencing.FenceField",
        [],
        {"db_column": "token", "editable": True},
    )
    assert FenceField().deconstruct()[3] == {}
    again = field.clone()
    assert (again.max_length, again.default, again.editable) == (15, NO_FENCE, True)


def test_a_model_from_before_the_field_gets_one_migration_that_changes_no_column(database):
    before, after = ProjectState(), ProjectState()
    old = models.CharField(max_length=15, default=NO_FENCE, editable=False)
    key = ("id", models.BigAutoField(primary_key=True))
    before.add_model(ModelState("shop", "Bill", [key, ("fence", old)]))
    after.add_model(ModelState("shop", "Bill", [key, ("fence", FenceField())]))
    changes = MigrationAutodetector(before, after)._detect_changes()
    (operation,) = changes["shop"][0].operations
    assert type(operation).__name__ == "AlterField"
    if connections[database].vendor == "sqlite":
        return  # Django rebuilds the table there, with the same columns
    with connections[database].schema_editor(collect_sql=True) as editor:
        operation.database_forwards("shop", editor, before, after)
    assert [line for line in editor.collected_sql if not line.startswith("--")] == []


@pytest.mark.django_db
def test_no_fence_at_all_is_refused_by_the_database():
    Entry(pk=7).save()
    with pytest.raises(IntegrityError):
        Entry.objects.update(fence=Exactly(None))


def test_the_model_uses_the_field():
    assert type(FencedModel._meta.get_field("fence")) is FenceField
