"""Listing and finding over several requests and, on a cluster, several lists; with no server."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from syncguard import LockError
from syncguard._backend.listing_and_health import LockPage
from syncguard.redis import listing


def lock(number):
    """A lock that expires at this time."""
    return SimpleNamespace(lock_id=f"id {number}", expires_at_ms=number)


class FakeCalls:
    """Answers each call itself, and records it. ``lists`` has the locks of each list, in order."""

    def __init__(self, *lists):
        self.lists = [[lock(number) for number in each] for each in lists]
        self.names = SimpleNamespace(spaces=lambda: list(range(len(lists))))
        self.requests = []

    def live_locks(self, space, offset, count):
        self.requests.append((space, offset, count))
        locks = self.lists[space]
        return LockPage(locks[offset : offset + count], len(locks), now_ms=100 - space)

    def walk(self, space, cursor, texts):
        """Two locks a step. The cursor is the number of the next one."""
        self.requests.append((space, cursor, *texts))
        begin = int(cursor)
        end = begin + 2
        locks = self.lists[space]
        return "0" if end >= len(locks) else str(end), locks[begin:end]


def result_of(steps):
    answer = None
    while True:
        try:
            answer = steps.send(answer)
        except StopIteration as done:
            return done.value


def test_a_long_page_is_read_a_thousand_at_a_time_and_no_lock_more():
    calls = FakeCalls(range(5_000))
    page = result_of(listing.page(calls, 2_500, 10))
    assert [info.expires_at_ms for info in page.locks] == list(range(10, 2_510))
    assert calls.requests == [(0, 10, 1_000), (0, 1_010, 1_000), (0, 2_010, 500)]
    assert (page.total, page.now_ms) == (5_000, 100)


def test_a_page_ends_with_the_list():
    calls = FakeCalls(range(1_200))
    assert len(result_of(listing.page(calls, 9_000, 0)).locks) == 1_200
    assert calls.requests == [(0, 0, 1_000), (0, 1_000, 1_000)]


def test_a_page_of_several_lists_is_in_the_order_of_expiry():
    calls = FakeCalls([1, 4, 6], [2, 3, 9], [])
    page = result_of(listing.page(calls, 2, 1))
    assert [info.expires_at_ms for info in page.locks] == [2, 3]
    assert (page.total, page.now_ms) == (6, 100)
    assert calls.requests == [(0, 0, 3), (1, 0, 3), (2, 0, 3)]


def test_an_empty_page_of_several_lists_counts_and_reads_nothing():
    calls = FakeCalls([1, 4], [2])
    page = result_of(listing.page(calls, 0, 7))
    assert (page.locks, page.total) == ([], 3)
    assert calls.requests == [(0, 0, 0), (1, 0, 0)]


def test_a_search_visits_every_list_until_its_end():
    calls = FakeCalls(range(3), [], range(10, 12))
    found = result_of(listing.find(calls, lambda info: info.expires_at_ms != 1, 9))
    assert [info.expires_at_ms for info in found] == [0, 2, 10, 11]
    assert calls.requests == [(0, "0"), (0, "2"), (1, "0"), (2, "0")]


def test_a_search_ends_when_it_has_found_enough():
    calls = FakeCalls(range(6), range(10, 12))
    found = result_of(listing.find(calls, lambda _info: True, 2, fence="07", acquired_at_ms=5))
    assert [info.expires_at_ms for info in found] == [0, 1]
    assert calls.requests == [(0, "0", '"07"', "5")]


@pytest.mark.parametrize(
    ("is_wanted", "at_most", "marks"),
    [
        (None, 1, {}),
        (bool, -1, {}),
        (bool, 1, {"fence": 7}),
        (bool, 1, {"fence": "\N{ARABIC-INDIC DIGIT ONE}"}),
        (bool, 1, {"acquired_at_ms": "5"}),
    ],
)
def test_wrong_arguments_of_a_search_are_refused_before_any_request(is_wanted, at_most, marks):
    calls = FakeCalls(range(3))
    with pytest.raises(LockError) as caught:
        result_of(listing.find(calls, is_wanted, at_most, **marks))
    assert caught.value.code == "InvalidArgument"
    assert calls.requests == []


@pytest.mark.parametrize("page", [(-1, 0), (1, -1), ("1", 0)])
def test_wrong_limits_of_a_page_are_refused_before_any_request(page):
    calls = FakeCalls(range(3))
    with pytest.raises(LockError):
        result_of(listing.page(calls, *page))
    assert calls.requests == []
