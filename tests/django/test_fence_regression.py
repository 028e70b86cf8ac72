"""A fence counter that went back is told: by a log line and a signal. A late holder is not."""

from __future__ import annotations

import logging

import pytest
from django.core.checks import run_checks
from django.db import transaction
from testsite.models import Account

from syncguard import format_fence
from syncguard.testing import RedisServer
from syncguard_django import lock, locks
from syncguard_django.fencing import StaleFence, guard
from syncguard_django.fencing.fence_regression import LINES_PER_HOUR, reports
from syncguard_django.signals import fence_went_back

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def told():
    """What the signal was sent with."""
    received = []

    def receive(sender, **values):
        values.pop("signal")
        received.append((sender, values))

    fence_went_back.connect(receive)
    reports.clear()
    yield received
    fence_went_back.disconnect(receive)
    reports.clear()


def holders(key, count):
    """So many holders, one after the other. Returns the fence of the last one."""
    for _ in range(count):
        with lock(key) as held:
            pass
    return held.fence


def guarded(key, fence):
    with transaction.atomic():
        guard(key, fence)


def lines(caplog):
    return [each for each in caplog.records if "went back" in each.message]


def test_the_guard_tells_of_a_counter_that_began_again(site_redis, backend, told, caplog):
    seen = holders("invoice:42", 41)
    guarded("invoice:42", seen)
    with site_redis.client() as client:
        client.flushall()
    for _ in range(3):
        with lock("invoice:42") as held, pytest.raises(StaleFence):
            guarded("invoice:42", held.fence)
    key_hash = backend.hash("invoice:42")
    values = {"using": "default", "key_hash": key_hash, "fence": format_fence(1), "seen": seen}
    assert told == [(StaleFence, values)], "once for a key and the fence of its row"
    [line] = lines(caplog)
    assert line.levelno == logging.ERROR
    assert f"of lock {key_hash} (alias 'default') went back" in line.message
    assert "invoice:42" not in line.message


def test_a_fenced_row_tells_of_it_too(site_redis, told, caplog):
    seen = holders("account:7", 3)
    account = Account.objects.create(owner="ann")
    account.save_fenced(seen)
    with site_redis.client() as client:
        client.flushall()
    for _ in range(2):
        with lock("account:7") as held, pytest.raises(StaleFence):
            Account.objects.filter(pk=account.pk).fenced(held.fence).update(owner="bob")
    assert [values["fence"] for _, values in told] == [format_fence(1)]
    assert len(lines(caplog)) == 1


@pytest.mark.usefixtures("backend")
def test_a_late_holder_is_refused_and_nothing_is_told(told, caplog):
    late = holders("invoice:42", 1)
    seen = holders("invoice:42", 40)
    account = Account.objects.create(owner="ann")
    account.save_fenced(seen)
    guarded("invoice:42", seen)
    with pytest.raises(StaleFence):
        guarded("invoice:42", late)  # nobody holds it now
    with lock("invoice:42"):  # somebody holds it, with a higher fence
        with pytest.raises(StaleFence):
            guarded("invoice:42", late)
        with pytest.raises(StaleFence):
            account.save_fenced(late)
    assert (told, lines(caplog)) == ([], [])


@pytest.mark.usefixtures("backend")
def test_a_late_holder_that_still_believes_in_its_lock_is_not_told_of(told):
    """An operator released its lock. Its fence is that of a block around this code."""
    account = Account.objects.create(owner="ann")
    with pytest.raises(StaleFence), lock("account:7") as late:
        locks["default"].release(late.lock_id)
        with locks["default"].acquire("account:7") as later:
            account.save_fenced(later.fence)
            account.save_fenced(late.fence)
    assert told == []


def test_a_server_that_cannot_be_asked_changes_nothing(settings, told):
    settings.SYNCGUARD = {"default": {"LOCATION": "redis://127.0.0.1:1/0"}}
    guarded("invoice:42", format_fence(2))
    with pytest.raises(StaleFence):
        guarded("invoice:42", format_fence(1))
    assert told == []


@pytest.mark.usefixtures("backend")
def test_a_loss_of_all_data_does_not_fill_the_log(told, caplog):
    keys = [f"invoice:{number}" for number in range(LINES_PER_HOUR + 5)]
    for key in keys:
        guarded(key, format_fence(9))
    for key in keys:
        with lock(key) as held, pytest.raises(StaleFence):
            guarded(key, held.fence)
    assert len(told) == len(keys)
    assert len(lines(caplog)) == LINES_PER_HOUR
    assert lines(caplog)[-1].message.endswith("Further ones are not logged in this hour.")
    assert not lines(caplog)[-2].message.endswith("in this hour.")


@pytest.mark.usefixtures("backend")
def test_a_receiver_that_fails_does_not_hide_the_refusal(told):
    def fail(**_values):
        raise ZeroDivisionError

    fence_went_back.connect(fail)
    try:
        guarded("invoice:42", format_fence(9))
        with lock("invoice:42") as held, pytest.raises(StaleFence):
            guarded("invoice:42", held.fence)
    finally:
        fence_went_back.disconnect(fail)
    assert len(told) == 1


def test_with_the_default_floor_a_loss_of_data_refuses_nobody(settings, site_redis, told):
    settings.SYNCGUARD = {"default": {"LOCATION": site_redis.url}}
    stale = holders("invoice:42", 1)
    guarded("invoice:42", holders("invoice:42", 40))
    with site_redis.client() as client:
        client.flushall()
    guarded("invoice:42", holders("invoice:42", 1))
    with pytest.raises(StaleFence):
        guarded("invoice:42", stale)
    assert told == []


def test_without_the_floor_a_late_holder_can_write_after_a_loss_of_data(site_redis):
    """Why the floor is the default: the row has not seen the holders before the loss."""
    stale = holders("invoice:42", 41)
    with site_redis.client() as client:
        client.flushall()
    guarded("invoice:42", holders("invoice:42", 1))
    guarded("invoice:42", stale)  # 41 is above 1, and is accepted


# -- the check ------------------------------------------------------------------------------------


def warnings_of_the_check():
    found = run_checks(include_deployment_checks=True)
    return [each.msg for each in found if each.id == "syncguard.W015"]


@pytest.mark.usefixtures("backend")
def test_the_deployment_check_recommends_the_floor_where_nothing_is_written():
    [text] = warnings_of_the_check()
    assert "FENCE_FLOOR: None, and nothing is written to disk" in text
    assert not [each for each in run_checks() if each.id == "syncguard.W015"]


def test_it_recommends_the_floor_where_replicas_exist(settings):
    with (
        RedisServer(config=["appendonly yes"]) as primary,
        RedisServer(config=[f"replicaof {primary.host} {primary.port}"]) as replica,
        primary.client() as client,
    ):
        replica.client().close()
        while not client.info("replication")["connected_slaves"]:
            pass
        entry = {"LOCATION": primary.url, "FENCE_FLOOR": None}
        settings.SYNCGUARD = {"default": entry}
        [text] = warnings_of_the_check()
        assert "1 replica is connected" in text
        settings.SYNCGUARD = {"default": {"LOCATION": primary.url}}
        assert not warnings_of_the_check()


def test_it_says_when_the_rights_to_ask_are_missing(settings, site_redis):
    with site_redis.client() as client:
        client.execute_command("ACL", "SETUSER", "few", "on", ">pw", "~*", "+@all", "-info")
        try:
            url = f"redis://few:pw@{site_redis.host}:{site_redis.port}/0"
            settings.SYNCGUARD = {"default": {"LOCATION": url, "FENCE_FLOOR": None}}
            [text] = warnings_of_the_check()
            assert "this user may not run INFO" in text
            findings = locks.inspector("default").health().findings
            assert any("this user may not run INFO" in each for each in findings)
        finally:
            locks.reset()
            client.execute_command("ACL", "DELUSER", "few")


def test_it_says_when_the_server_does_not_answer(settings):
    entry = {"LOCATION": "redis://127.0.0.1:1/0", "FENCE_FLOOR": None}
    settings.SYNCGUARD = {"default": entry}
    [text] = warnings_of_the_check()
    assert "could not be asked whether it can lose fences (ServiceUnavailable)" in text
