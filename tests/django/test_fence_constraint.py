"""``FenceNeverDecreases``: the database refuses a lower fence, also from raw SQL."""

# ruff: noqa: ARG001 - fixtures act by being named
from __future__ import annotations

import pytest
from django.apps import apps
from django.core.checks import Error, Warning, run_checks
from django.core.exceptions import ImproperlyConfigured
from django.db import IntegrityError, connections, migrations, models, transaction
from django.db.migrations.autodetector import MigrationAutodetector
from django.db.migrations.state import ModelState, ProjectState
from django.db.migrations.writer import MigrationWriter
from django.test.utils import isolate_apps
from testsite.models import Letter, Sealed

from syncguard import format_fence
from syncguard_django.fencing import (
    FencedModel,
    FencedQuerySet,
    FenceField,
    FenceNeverDecreases,
    StaleFence,
)
from syncguard_django.fencing.fence_checks import check_fenced_models

ONE, TWO, THREE = (format_fence(number) for number in (1, 2, 3))
CONSTRAINT = FenceNeverDecreases(name="bill_fence")


def set_fence(database, fence, table="testsite_sealed", column="fence"):
    quote = connections[database].ops.quote_name
    with transaction.atomic(using=database), connections[database].cursor() as cursor:
        cursor.execute(f"UPDATE {quote(table)} SET {quote(column)} = %s", [fence])  # noqa: S608


@pytest.fixture
def sealed(database):
    Sealed(pk=7).save_fenced(TWO, using=database)
    return Sealed.objects.using(database)


# What the database refuses


def test_raw_sql_cannot_lower_a_fence(sealed, database):
    with pytest.raises(IntegrityError, match="never decreases"):
        set_fence(database, ONE)
    assert sealed.get().fence == TWO


def test_raw_sql_can_keep_and_raise_a_fence(sealed, database):
    set_fence(database, TWO)
    set_fence(database, THREE)
    assert sealed.get().fence == THREE


def test_other_writes_work_as_without_the_constraint(sealed, database):
    row = sealed.get()
    row.text = "plain"
    row.save()
    row.save_fenced(THREE)
    sealed.update(text="b", fence=ONE)
    with pytest.raises(StaleFence):
        sealed.fenced(TWO).update(text="late")
    row.full_clean()
    assert sealed.get().fence == THREE
    assert sealed.fenced(THREE).delete()[0] == 1


def test_forgetting_is_refused_too(sealed, database):
    with pytest.raises(IntegrityError), transaction.atomic(using=database):
        sealed.forget_fences()
    assert sealed.get().fence == TWO


def test_an_upsert_is_allowed(sealed, database):
    features = connections[database].features
    unique = ["id"] if features.supports_update_conflicts_with_target else None
    sealed.bulk_create(
        [Sealed(pk=7, text="upsert")],
        update_conflicts=True,
        update_fields=["text", "fence"],
        unique_fields=unique,
    )
    assert (sealed.get().text, sealed.get().fence) == ("upsert", TWO)


# Migrations


@pytest.fixture
def project(database):
    """Apply operations to the app ``shop``, which starts without models."""
    project = Project(database)
    yield project
    project.undo_all()


class Project:
    def __init__(self, database):
        self.database, self.state, self.done = database, ProjectState(), []

    def apply(self, *operations):
        for operation in operations:
            before, after = self.state, self.state.clone()
            operation.state_forwards("shop", after)
            with connections[self.database].schema_editor() as editor:
                operation.database_forwards("shop", editor, before, after)
            self.state = after
            self.done.append((operation, before, after))

    def undo(self):
        operation, before, after = self.done.pop()
        with connections[self.database].schema_editor() as editor:
            operation.database_backwards("shop", editor, after, before)
        self.state = before

    def undo_all(self):
        while self.done:
            self.undo()

    def refuses(self, table="shop_bill", column="fence"):
        """Whether the database refuses to lower the fence of a new row."""
        model = self.state.apps.get_model("shop", "Bill")
        rows = model._base_manager.using(self.database)
        rows.all().delete()
        rows.create(**{column: TWO})
        try:
            set_fence(self.database, ONE, table, column)
        except IntegrityError:
            return True
        return False


def create_bill(*constraints):
    fields = [
        ("id", models.BigAutoField(primary_key=True)),
        ("fence", FenceField()),
        ("number", models.IntegerField(default=0)),
    ]
    return migrations.CreateModel("Bill", fields, {"constraints": list(constraints)})


ADD = migrations.AddConstraint("Bill", CONSTRAINT)


def test_a_new_table_has_the_trigger(project):
    project.apply(create_bill(CONSTRAINT))
    assert project.refuses()


def test_the_constraint_can_be_added_and_removed_and_both_can_be_undone(project):
    project.apply(create_bill())
    assert not project.refuses()
    project.apply(ADD)
    assert project.refuses()
    project.apply(migrations.RemoveConstraint("Bill", CONSTRAINT.name))
    assert not project.refuses()
    project.undo()
    assert project.refuses()
    project.undo()
    assert not project.refuses()


def test_after_undoing_the_constraint_can_be_created_again(project, database):
    project.apply(create_bill(), ADD)
    project.undo_all()
    project.apply(create_bill(), ADD)
    assert project.refuses()


@pytest.mark.parametrize(
    "operation",
    [
        migrations.AlterField("Bill", "number", models.BigIntegerField(default=0)),
        migrations.AlterField("Bill", "number", models.IntegerField(null=True, unique=True)),
        migrations.AddField(
            "Bill", "text", models.CharField(max_length=9, default="", unique=True)
        ),
        migrations.RemoveField("Bill", "number"),
        migrations.RenameField("Bill", "number", "amount"),
        migrations.AlterField("Bill", "fence", FenceField(editable=True)),
    ],
    ids=["alter", "alter to unique", "add", "remove", "rename", "alter the fence"],
)
def test_the_trigger_survives_changes_of_the_table(project, operation):
    project.apply(create_bill(CONSTRAINT), operation)
    assert project.refuses()
    project.undo()
    assert project.refuses()


def test_the_trigger_survives_renaming_the_table(project):
    project.apply(create_bill(CONSTRAINT), migrations.AlterModelTable("Bill", "renamed"))
    assert project.refuses("renamed")
    project.apply(migrations.AlterField("Bill", "number", models.BigIntegerField(default=0)))
    assert project.refuses("renamed")
    project.apply(migrations.RemoveConstraint("Bill", CONSTRAINT.name))
    assert not project.refuses("renamed")


def test_a_table_renamed_in_the_migration_that_created_it_has_the_trigger(project, database):
    # Both operations share an editor, as in one migration: the trigger is created at its end.
    create, rename = create_bill(CONSTRAINT), migrations.AlterModelTable("Bill", "renamed")
    first, second = project.state.clone(), None
    create.state_forwards("shop", first)
    second = first.clone()
    rename.state_forwards("shop", second)
    with connections[database].schema_editor() as editor:
        create.database_forwards("shop", editor, project.state, first)
        rename.database_forwards("shop", editor, first, second)
    project.done = [(create, project.state, first), (rename, first, second)]
    project.state = second
    assert project.refuses("renamed")


@pytest.mark.parametrize("old", [[], [FenceNeverDecreases(name="old")], [CONSTRAINT]])
def test_makemigrations_detects_the_constraint(old):
    before, after = ProjectState(), ProjectState()
    fields = [("id", models.BigAutoField(primary_key=True)), ("fence", FenceField())]
    before.add_model(ModelState("shop", "Bill", fields, {"constraints": old}))
    after.add_model(ModelState("shop", "Bill", fields, {"constraints": [CONSTRAINT]}))
    changes = MigrationAutodetector(before, after)._detect_changes()
    found = [
        type(operation).__name__ for m in changes.get("shop", []) for operation in m.operations
    ]
    assert found == ({"old": ["RemoveConstraint"]}.get(old[0].name, []) if old else []) + (
        [] if old == [CONSTRAINT] else ["AddConstraint"]
    )


def test_a_migration_file_uses_the_public_name():
    text, imports = MigrationWriter.serialize(CONSTRAINT)
    assert text == "syncguard_django.fencing.FenceNeverDecreases(name='bill_fence')"
    assert imports == {"import syncguard_django.fencing"}


def test_constraints_with_the_same_name_are_equal():
    same, other = FenceNeverDecreases(name="bill_fence"), FenceNeverDecreases(name="other")
    assert {CONSTRAINT, same} == {CONSTRAINT}
    assert other != CONSTRAINT
    assert CONSTRAINT != "bill_fence"
    assert CONSTRAINT.clone() == CONSTRAINT
    assert repr(CONSTRAINT) == "<FenceNeverDecreases: name='bill_fence'>"


@isolate_apps("testsite")
def test_an_abstract_model_can_declare_the_constraint_for_its_children():
    class Protected(FencedModel):
        class Meta:
            abstract = True
            constraints = (FenceNeverDecreases(name="%(class)s_fence"),)

    class Bill(Protected):
        class Meta(Protected.Meta):
            app_label = "testsite"

    assert Bill._meta.constraints == [FenceNeverDecreases(name="bill_fence")]


# Checks


def test_the_test_site_has_no_check_messages():
    assert [message for message in run_checks() if "fence" in message.msg] == []


@isolate_apps("testsite", attr_name="registry")
def test_a_model_that_does_not_own_the_column_is_an_error(monkeypatch):
    class Bill(Letter):
        class Meta:
            app_label = "testsite"
            constraints = (CONSTRAINT,)

    assert messages(monkeypatch, Bill) == [
        Error(
            "'bill_fence' is a FenceNeverDecreases, but the table of this model has no fence.",
            hint="Move it to the model that inherits from FencedModel: with multi-table"
            " inheritance, that is the parent.",
            obj=Bill,
            id="syncguard.E020",
        )
    ]
    with pytest.raises(ImproperlyConfigured, match="belongs to the model that has the FenceField"):
        CONSTRAINT.create_sql(Bill, connections["default"].schema_editor())


@isolate_apps("testsite")
def test_a_manager_without_fenced_queries_is_a_warning(monkeypatch):
    class Bill(FencedModel):
        objects = FencedQuerySet.as_manager()
        plain = models.Manager()

        class Meta:
            app_label = "testsite"

    (message,) = messages(monkeypatch, Bill)
    assert (message.id, message.obj) == ("syncguard.W020", Bill)
    assert "The manager 'plain' returns no FencedQuerySet" in message.msg


def messages(monkeypatch, model):
    config = apps.get_app_config("testsite")
    monkeypatch.setattr(config, "get_models", lambda: [model])
    return check_fenced_models([config])


class Other:
    """A connection to a database for which there is no trigger."""

    vendor, display_name = "oracle", "Oracle"


def test_an_unsupported_database_gets_a_warning_and_no_trigger():
    class Editor:
        connection = Other
        deferred_sql = ()

    assert CONSTRAINT.create_sql(Sealed, Editor) is None
    assert CONSTRAINT.remove_sql(Sealed, Editor) is None
    assert CONSTRAINT.constraint_sql(Sealed, Editor) is None
    (message,) = CONSTRAINT.check(Sealed, Other)
    assert isinstance(message, Warning)
    assert (message.id, message.obj) == ("syncguard.W021", Sealed)
    assert "Oracle has no trigger" in message.msg


def test_the_check_runs_when_a_database_is_named(monkeypatch, database):
    assert run_checks(databases=[database]) is not None
    monkeypatch.setattr(connections[database], "vendor", "oracle")
    found = [each for each in Sealed.check(databases=[database]) if each.id == "syncguard.W021"]
    assert len(found) == 1
