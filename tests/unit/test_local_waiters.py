"""Which waiter of a process gets a wake-up, and on which lists its connection listens."""

from __future__ import annotations

import os

from syncguard.redis.local_waiters import (
    MAX_CLUSTER_LISTENERS,
    MAX_LISTS,
    ClusterLimit,
    LocalWaiters,
    WakeList,
)
from syncguard.redis.script_calls import Calls


class Waiter:
    def __init__(self, key: str, *, waits_now: bool = True) -> None:
        self.wake_list = wake_list(key)
        self.waits_now = waits_now
        self.is_woken = False

    def wake(self) -> None:
        self.is_woken = True


def wake_list(key: str) -> WakeList:
    calls = Calls()
    return WakeList.of(calls.names.of(key).wake, calls.pass_on(key))


def waiting(*waiters: Waiter) -> LocalWaiters[Waiter]:
    local: LocalWaiters[Waiter] = LocalWaiters()
    for waiter in waiters:
        local.add(waiter)
    return local


def test_a_wake_up_goes_to_the_waiter_that_has_waited_longest() -> None:
    first, second, other = Waiter("k"), Waiter("k"), Waiter("other")
    local = waiting(other, first, second)
    assert local.wake_longest(wake_list("k"))
    assert (first.is_woken, second.is_woken, other.is_woken) == (True, False, False)
    assert local.wake_longest(wake_list("k"))
    assert second.is_woken
    assert not local.wake_longest(wake_list("k"))


def test_a_waiter_that_is_trying_gets_a_wake_up_only_if_nobody_else_waits() -> None:
    trying, waits = Waiter("k", waits_now=False), Waiter("k")
    local = waiting(trying, waits)
    assert local.wake_longest(wake_list("k"))
    assert (trying.is_woken, waits.is_woken) == (False, True)
    assert local.wake_longest(wake_list("k"))
    assert trying.is_woken


def test_a_waiter_that_left_gets_no_wake_up() -> None:
    left = Waiter("k")
    local = waiting(left)
    assert local.remove(left)
    assert not local.remove(left)
    assert not local.wake_longest(wake_list("k"))
    assert not left.is_woken


def test_a_waiter_that_joins_again_keeps_its_place() -> None:
    first, second = Waiter("k"), Waiter("k")
    local = waiting(first, second, first)
    local.wake_longest(wake_list("k"))
    assert first.is_woken


def test_the_lists_are_those_of_the_waiters_each_once_and_the_longest_first() -> None:
    local = waiting(Waiter("b"), Waiter("a"), Waiter("b"))
    assert list(local.lists()) == [wake_list("b"), wake_list("a")]
    assert local.is_covered(local.lists())
    local.add(Waiter("c"))
    assert not local.is_covered({wake_list("a"): wake_list("a"), wake_list("b"): wake_list("b")})


def test_one_blpop_has_a_limited_number_of_lists() -> None:
    local = waiting(*(Waiter(str(n)) for n in range(MAX_LISTS + 10)))
    lists = local.lists()
    assert list(lists) == [wake_list(str(n)) for n in range(MAX_LISTS)]
    assert local.is_covered(lists)


def test_a_waiter_that_waits_now_is_found() -> None:
    trying, waits = Waiter("k", waits_now=False), Waiter("other")
    assert waiting(trying, waits).first_that_waits() is waits
    assert waiting(trying).first_that_waits() is None


def test_the_text_of_a_list_does_not_show_the_key() -> None:
    assert "secret" not in repr(wake_list("secret"))
    assert "secret" not in f"{waiting(Waiter('secret')).lists()}"


def test_a_process_listens_to_a_limited_number_of_buckets() -> None:
    limit = ClusterLimit()
    listeners = [object() for _ in range(MAX_CLUSTER_LISTENERS)]
    assert all(limit.admit(listener) for listener in listeners)
    assert not limit.admit("one more")
    assert limit.admit(listeners[0])
    limit.leave(listeners[0])
    assert limit.admit("one more")


def test_the_buckets_of_the_parent_do_not_count_in_a_forked_child() -> None:
    limit = ClusterLimit()
    for n in range(MAX_CLUSTER_LISTENERS):
        limit.admit(n)
    child = os.fork()
    if child == 0:
        os._exit(0 if limit.admit("of the child") else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
