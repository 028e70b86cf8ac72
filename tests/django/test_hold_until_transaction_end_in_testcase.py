"""In a ``TestCase``, whose own transaction never commits, locks are released as in production."""

from __future__ import annotations

import time

import pytest
from django.db import connection, transaction
from django.test import TestCase
from testsite.models import Account

from syncguard import LockLost
from syncguard_django import LockOrderWarning, lock, locks


def is_locked(key="invoice:42"):
    return locks["default"].is_locked(key)


@pytest.mark.usefixtures("site_redis")
class LocksInATestCase(TestCase):
    @classmethod
    def setUpTestData(cls):
        cls.account = Account.objects.create(owner="Ada")

    def test_without_a_transaction_of_its_own_the_block_releases(self):
        with lock("invoice:42"):
            Account.objects.count()
        assert not is_locked()

    def test_the_outermost_block_of_the_code_under_test_is_the_transaction(self):
        with transaction.atomic():
            with transaction.atomic():
                with lock("invoice:42") as held:
                    pass
            assert is_locked()
            with lock("invoice:42") as again:
                assert again.fence == held.fence
        assert not is_locked()
        assert "savepoint_commit" not in connection.__dict__

    def test_a_rollback_releases(self):
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            with lock("invoice:42"):
                pass
            raise ZeroDivisionError
        assert not is_locked()

    def test_a_block_without_a_savepoint_is_a_transaction_too(self):
        with transaction.atomic(savepoint=False):
            with transaction.atomic():
                with lock("invoice:42"):
                    pass
            assert is_locked()
        assert not is_locked()
        assert type(connection.atomic_blocks) is list

    def test_a_durable_block_is_a_transaction_too(self):
        with transaction.atomic(durable=True):
            with lock("invoice:42"):
                pass
            assert is_locked()
        assert not is_locked()

    def test_hooks_find_the_lock_released(self):
        seen = []
        with self.captureOnCommitCallbacks(execute=True):
            with transaction.atomic():
                transaction.on_commit(lambda: seen.append(is_locked()))
                with lock("invoice:42"):
                    pass
        assert seen == [False]

    def test_a_lost_lock_prevents_the_commit(self):
        with pytest.raises(LockLost), transaction.atomic():
            with lock("invoice:42", ttl_ms=3_000) as held:
                Account.objects.update(balance=5)
            locks["default"].release(held.lock_id)
            while not held.lost:  # the heartbeat extends every second
                time.sleep(0.01)
        assert Account.objects.get().balance == 0
        with transaction.atomic():
            Account.objects.update(balance=6)
        assert Account.objects.get().balance == 6

    def test_queries_of_the_test_itself_cause_no_warning(self):
        @transaction.atomic
        def settle():
            with lock("invoice:42"):
                Account.objects.count()

        Account.objects.count()
        settle()
        settle()
        with transaction.atomic():
            with lock("invoice:42"):
                pass

    def test_queries_of_the_code_under_test_cause_a_warning(self):
        with pytest.raises(LockOrderWarning), transaction.atomic():
            Account.objects.count()
            with lock("invoice:42"):
                pass


@pytest.mark.django_db
def test_the_fixture_of_pytest_django_behaves_like_a_testcase(backend):
    with transaction.atomic():
        with lock("invoice:42"):
            pass
        assert backend.is_locked("invoice:42")
    assert not backend.is_locked("invoice:42")
