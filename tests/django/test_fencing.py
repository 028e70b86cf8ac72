"""The fence guard refuses a late write with an older fence, on SQLite, PostgreSQL and MariaDB."""

from __future__ import annotations

import pickle
import threading
import time

import pytest
from databases import empty, is_a_transaction_blocked
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connections, transaction
from django.db.transaction import TransactionManagementError
from testsite.models import Account

from syncguard import Acquisition, LockError, format_fence
from syncguard_django import fencing, lock, locks
from syncguard_django.fencing import NO_FENCE, StaleFence, fenced_save, guard, key_guard
from syncguard_django.models import FenceMark

ONE, TWO, THREE = (format_fence(number) for number in (1, 2, 3))
PATIENT = Acquisition(max_retries=1_000, timeout_ms=60_000)


def write(fence, database, key="invoice:42", using="default"):
    with transaction.atomic(using=database):
        guard(key, fence, using=using, database=database)


# guard


def test_a_late_write_with_an_older_fence_is_refused(database):
    write(ONE, database)
    write(TWO, database)
    with pytest.raises(StaleFence) as raised:
        write(ONE, database)
    assert (raised.value.fence, raised.value.seen) == (ONE, TWO)


def test_the_same_holder_may_write_again(database):
    write(TWO, database)
    write(TWO, database)
    write(THREE, database)


def test_a_refused_writer_leaves_everything_as_it_was(database):
    write(TWO, database)
    with pytest.raises(StaleFence), transaction.atomic(using=database):
        Account.objects.using(database).create(owner="ann")
        guard("invoice:42", ONE, database=database)
    assert not Account.objects.using(database).exists()
    assert FenceMark.objects.using(database).get().fence == TWO


def test_a_transaction_that_is_rolled_back_leaves_no_mark(database):
    with pytest.raises(ZeroDivisionError), transaction.atomic(using=database):
        guard("invoice:42", TWO, database=database)
        raise ZeroDivisionError
    write(ONE, database)


def test_the_marks_of_two_keys_are_separate(database):
    write(TWO, database, key="invoice:42")
    write(ONE, database, key="invoice:43")


def test_outside_a_transaction_it_is_refused(database):
    with pytest.raises(TransactionManagementError, match=r"inside transaction\.atomic\(\)"):
        guard("invoice:42", ONE, database=database)


def test_the_former_holder_of_a_real_lock_is_refused(database, backend):
    late = backend.acquire("invoice:42", ttl_ms=60_000)
    assert late.extend(500)
    with lock("invoice:42", acquisition=PATIENT) as held:  # waits until the first has expired
        write(held.fence, database)
    with pytest.raises(StaleFence):
        write(late.fence, database)


def test_the_mark_does_not_show_the_key(database):
    write(ONE, database, key="hunter2")
    mark = FenceMark.objects.using(database).get()
    assert len(mark.key_digest) == 64
    assert str(mark) == f"{mark.key_digest[:12]} (fence {ONE})"
    assert "hunter2" not in f"{mark.key_digest}{mark}"


def test_the_implementation_for_other_databases_gives_the_same_results(database):
    digest = fencing.key_digest("invoice:42")
    with transaction.atomic(using=database):
        answers = [
            key_guard._record_under_a_row_lock(digest, fence, database)
            for fence in (TWO, ONE, TWO, THREE, TWO)
        ]
    assert answers == [True, False, True, True, False]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "record"),
    [
        ("postgres", key_guard._record_in_one_statement),
        ("postgres", key_guard._record_under_a_row_lock),
        ("mariadb", key_guard._record_under_a_row_lock),
    ],
)
def test_a_later_holder_waits_for_the_earlier_ones_transaction(
    request, django_db_blocker, server, record, monkeypatch
):
    database = request.getfixturevalue(f"{server}_database")
    if server == "postgres":
        monkeypatch.setitem(key_guard._RECORDERS, "postgresql", record)
    order = []
    earlier_is_in, earlier_may_go = threading.Event(), threading.Event()

    def earlier():
        with transaction.atomic(using=database):
            guard("invoice:42", ONE, database=database)
            earlier_is_in.set()
            earlier_may_go.wait(30)
            order.append("earlier")
        connections[database].close()

    def later():
        with transaction.atomic(using=database):
            guard("invoice:42", TWO, database=database)
            order.append("later")
        connections[database].close()

    with django_db_blocker.unblock():
        write(NO_FENCE, database)
        threads = [threading.Thread(target=earlier), threading.Thread(target=later)]
        threads[0].start()
        assert earlier_is_in.wait(30)
        threads[1].start()
        _wait_for_a_blocked_writer(database)
        earlier_may_go.set()
        for thread in threads:
            thread.join(30)
        assert order == ["earlier", "later"]
        with pytest.raises(StaleFence):
            write(ONE, database)
        empty(database)
        connections[database].close()


def _wait_for_a_blocked_writer(database):
    deadline = time.monotonic() + 30
    while not is_a_transaction_blocked(connections[database]):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.django_db
def test_the_marks_of_aliases_with_different_prefixes_are_separate(settings):
    settings.SYNCGUARD = {
        name: {"LOCATION": "redis://", "KEY_PREFIX": name} for name in ("default", "other")
    }
    write(TWO, "default", using="default")
    write(ONE, "default", using="other")


@pytest.mark.django_db
def test_the_database_is_the_one_that_django_would_write_to():
    write(ONE, None)
    assert FenceMark.objects.using("default").get().fence == ONE


@pytest.mark.django_db
@pytest.mark.parametrize("fence", [1, "1", "x" * 15, "٣" * 15, "9" * 15, None, f"{ONE}\n"])
def test_an_invalid_fence_is_refused(fence):
    with pytest.raises(LockError, match="a fence is"):
        write(fence, "default")


@pytest.mark.django_db
def test_an_invalid_key_is_refused():
    with pytest.raises(LockError, match="must not be empty"):
        write(ONE, "default", key="")


def test_the_error_says_what_to_do():
    text = str(StaleFence(ONE, TWO))
    assert "Another holder has your lock now: stop" in text
    assert "manage.py syncguard_guard --forget KEY" in text
    assert "FENCE_FLOOR" in text


def test_the_error_survives_pickling():
    again = pickle.loads(pickle.dumps(StaleFence(ONE, TWO)))  # noqa: S301
    assert (again.fence, again.seen, str(again)) == (ONE, TWO, str(StaleFence(ONE, TWO)))


# FencedModel


def test_a_new_row_is_saved_with_its_fence(database):
    account = Account(owner="ann")
    assert account.fence == NO_FENCE
    account.save_fenced(TWO, using=database)
    assert Account.objects.using(database).get().fence == TWO


def test_a_new_row_may_have_a_given_key(database):
    Account(pk=7, owner="ann").save_fenced(ONE, using=database)
    assert Account.objects.using(database).get(pk=7).fence == ONE


def test_a_late_save_changes_nothing_and_raises(database):
    Account(pk=7, owner="ann").save_fenced(ONE, using=database)
    late = Account.objects.using(database).get(pk=7)
    newer = Account.objects.using(database).get(pk=7)
    newer.balance = 200
    newer.save_fenced(TWO, using=database)
    late.balance = 100
    with pytest.raises(StaleFence) as raised:
        late.save_fenced(ONE, using=database)
    assert raised.value.seen == TWO
    stored = Account.objects.using(database).get(pk=7)
    assert (stored.balance, stored.fence) == (200, TWO)
    assert late.fence == ONE


def test_the_same_holder_may_save_again(database):
    account = Account(pk=7)
    account.save_fenced(ONE, using=database)
    account.balance = 5
    account.save_fenced(ONE, using=database)
    assert Account.objects.using(database).get(pk=7).balance == 5


def test_only_some_fields_can_be_saved(database):
    Account(pk=7, owner="ann", balance=1).save_fenced(ONE, using=database)
    account = Account(pk=7, owner="bob", balance=2)
    account.save_fenced(TWO, using=database, update_fields=["balance"])
    stored = Account.objects.using(database).get(pk=7)
    assert (stored.owner, stored.balance, stored.fence) == ("ann", 2, TWO)


def test_a_save_that_fails_claims_nothing(database):
    account = Account(pk=7, balance=1)
    account.save_fenced(ONE, using=database)
    account.balance = "many"
    with pytest.raises(ValueError, match="many"):
        account.save_fenced(TWO, using=database)
    assert account.fence == ONE
    assert Account.objects.using(database).get(pk=7).fence == ONE


@pytest.mark.parametrize(("fence", "balance"), [(THREE, 5), (ONE, 0)])
def test_a_row_that_another_holder_inserts_meanwhile_is_claimed(
    database, monkeypatch, fence, balance
):
    claim = fenced_save.claim_row
    Account(pk=7).save_fenced(TWO, using=database)
    answers = iter([lambda *_: False])  # the first claim finds no row
    monkeypatch.setattr(fenced_save, "claim_row", lambda *row: next(answers, claim)(*row))
    account = Account(pk=7, balance=5)
    if fence == ONE:
        with pytest.raises(StaleFence):
            account.save_fenced(fence, using=database)
    else:
        account.save_fenced(fence, using=database)
    assert Account.objects.using(database).get(pk=7).balance == balance


def test_another_error_of_the_insert_is_raised(database):
    with pytest.raises(IntegrityError):
        Account(owner=None).save_fenced(ONE, using=database)


def test_a_fenced_update_changes_rows_and_their_fence(database):
    Account(pk=7).save_fenced(ONE, using=database)
    accounts = Account.objects.using(database)
    assert accounts.filter(pk=7).fenced(TWO).update(balance=5) == 1
    assert accounts.fenced(TWO).filter(pk=7).update(balance=6) == 1
    stored = accounts.get(pk=7)
    assert (stored.balance, stored.fence) == (6, TWO)


def test_a_late_update_changes_nothing_and_raises(database):
    Account(pk=7).save_fenced(ONE, using=database)
    Account(pk=8).save_fenced(THREE, using=database)
    accounts = Account.objects.using(database)
    with pytest.raises(StaleFence) as raised:
        accounts.fenced(TWO).update(balance=5)
    assert raised.value.seen == THREE
    assert set(accounts.values_list("balance", "fence")) == {(0, ONE), (0, THREE)}


def test_an_update_may_change_what_it_filters_by(database):
    Account(pk=7, owner="ann").save_fenced(ONE, using=database)
    accounts = Account.objects.using(database)
    assert accounts.filter(owner="ann").fenced(TWO).update(owner="bob") == 1
    assert accounts.get(pk=7).owner == "bob"


def test_a_late_delete_deletes_nothing_and_raises(database):
    Account(pk=7).save_fenced(TWO, using=database)
    accounts = Account.objects.using(database)
    with pytest.raises(StaleFence):
        accounts.fenced(ONE).delete()
    assert accounts.fenced(TWO).delete()[0] == 1
    assert not accounts.exists()


@pytest.mark.django_db
def test_without_a_fence_a_query_set_is_like_any_other():
    Account(pk=7).save_fenced(TWO)
    assert Account.objects.update(balance=5) == 1
    assert Account.objects.all().delete()[0] == 1


@pytest.mark.django_db
def test_models_refuse_an_invalid_fence_too():
    with pytest.raises(LockError):
        Account().save_fenced("1")
    with pytest.raises(LockError):
        Account.objects.fenced("1")


# syncguard_guard


@pytest.fixture
def forget(capsys, monkeypatch):
    def run(*arguments, answer="y"):
        monkeypatch.setattr("builtins.input", lambda _prompt: answer)
        call_command("syncguard_guard", *arguments)
        return capsys.readouterr().out

    return run


def test_the_command_makes_the_guard_forget_its_fence(database, forget):
    write(THREE, database)
    with pytest.raises(StaleFence):
        write(ONE, database)
    out = forget("--forget", "invoice:42", "--database", database)
    assert f"Forgot the fence of key {locks['default'].hash('invoice:42')}" in out
    assert "invoice:42" not in out
    write(ONE, database)


@pytest.mark.django_db
def test_the_command_asks_for_confirmation(forget):
    write(THREE, "default")
    assert forget("--forget", "invoice:42", answer="").endswith("Nothing was changed.\n")
    assert FenceMark.objects.exists()
    assert "accept any fence" not in forget("--forget", "invoice:42", "--no-input")
    assert not FenceMark.objects.exists()


@pytest.mark.django_db
def test_the_command_reports_an_unknown_key(forget):
    assert forget("--forget", "invoice:42").startswith("The guard will accept any fence")
    assert "has recorded no fence" in forget("--forget", "invoice:42", "--no-input")


@pytest.mark.django_db
def test_the_command_refuses_an_invalid_key(forget):
    with pytest.raises(CommandError, match="InvalidArgument: a key must not be empty"):
        forget("--forget", "")
