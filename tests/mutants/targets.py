"""What is mutated, and the tests that must notice it: the decisions of the lock and its adapters.

Listed are the places where one wrong comparison lets two holders in, loses a lock or a task, or
frees somebody else's lock. A module that only moves data is not listed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath


@dataclass(frozen=True)
class Target:
    """A file, or some functions of it, and the tests that are run for each of its mutants."""

    path: str
    tests: tuple[str, ...]
    functions: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).stem


# The quick ones first: most mutants are noticed within seconds.
_SCRIPTS = (
    "tests/redis/test_script_calls.py",
    "tests/redis/test_half_moved_lock.py",
    "tests/redis/test_exact_expiry.py",
    "tests/redis/test_resent_requests.py",
    "tests/redis/test_ownership.py",
    "tests/redis/test_fence_counters.py",
    "tests/redis/test_find_live_lock.py",
    "tests/redis/test_storage.py",
    "tests/faults/test_waiter.py",
    "tests/redis/test_min_replicas.py::test_a_request_that_is_sent_again_writes_again",
    "tests/redis/test_expired_entries.py",
    "tests/redis/test_undo.py",
    "tests/conformance/test_redis.py",
)
_MOVING_LIST = tuple(
    f"tests/faults/test_heartbeat_cluster.py::{test}"
    for test in (
        "test_a_lock_that_is_half_moved_stays_in_the_list",
        "test_the_list_has_the_locks_of_a_slot_that_have_not_moved_yet",
    )
)
_WAKE_UPS = (
    "tests/redis/test_next_turn_at_a_fixed_time.py",
    "tests/redis/test_next_turn.py",
    "tests/redis/test_script_calls.py",
    "tests/redis/test_wake_listener_async.py",
    "tests/faults/test_waiter.py",
    "tests/faults/test_wake_listener.py",
)
_WAITERS = ("tests/unit/test_waiter_steps.py", "tests/faults/test_waiter.py")
_UNDO = (
    "tests/unit/test_undo_steps.py",
    "tests/redis/test_undo_thread.py",
    "tests/redis/test_undo.py",
)
_WHAT_IS_UNDONE = ("tests/redis/test_what_is_undone.py", "tests/redis/test_undo.py")
_HEARTBEAT = ("tests/unit/test_schedule.py", "tests/faults/test_heartbeat.py")
_BLOCKS = (
    "tests/redis/test_reentrancy.py",
    "tests/redis/test_lock.py",
    "tests/redis/test_lock_async.py",
    "tests/faults/test_lost_locks.py",
    "tests/faults/test_fork.py",
    "tests/faults/test_interrupts.py",
)

TARGETS = (
    *(
        Target(f"syncguard/redis/lua/{script}.lua", _SCRIPTS)
        for script in (
            "acquire",
            "release",
            "extend",
            "adopt",
            "undo",
            "is_locked",
            "lookup_by_id",
            "lookup_by_key",
        )
    ),
    *(
        Target(f"syncguard/redis/lua/{script}.lua", (*_SCRIPTS, *_MOVING_LIST))
        for script in ("find_live_locks", "live_locks")
    ),
    *(
        Target(f"syncguard/redis/lua/{script}.lua", _WAKE_UPS)
        for script in ("pass_on_wake_up", "next_turn", "end_wait", "ring_bell")
    ),
    Target(
        "syncguard/redis/lua/counts.lua",
        ("tests/redis/test_exact_expiry.py", "tests/redis/test_fence_counters.py"),
    ),
    Target("syncguard/redis/local_waiters.py", ("tests/unit/test_local_waiters.py", *_WAKE_UPS)),
    Target("syncguard/redis/waiter.py", _WAITERS),
    Target(
        "syncguard/redis/waiter_async.py",
        ("tests/unit/test_waiter_steps.py", "tests/redis/test_waiter_async.py"),
    ),
    Target("syncguard/redis/spent_ids.py", ("tests/unit/test_spent_ids.py", *_UNDO)),
    Target("syncguard/redis/undo_thread.py", _UNDO),
    Target(
        "syncguard/redis/redis_backend.py",
        _WHAT_IS_UNDONE,
        (
            "RedisBackend.run_acquire",
            "RedisBackend._adopt",
            "RedisBackend._undo_unanswered",
            "RedisBackend.undo",
        ),
    ),
    Target(
        "syncguard/redis/redis_backend_async.py",
        _WHAT_IS_UNDONE,
        ("AsyncRedisBackend._run_acquire", "AsyncRedisBackend.adopt", "_first_try"),
    ),
    Target(
        "syncguard/_backend/deadline.py",
        ("tests/unit/test_deadline.py", "tests/faults/test_deadline.py"),
    ),
    Target("syncguard/clock.py", ("tests/unit/test_clock.py",)),
    Target("syncguard/_heartbeat/schedule.py", _HEARTBEAT),
    Target("syncguard/_lock/block_state.py", _BLOCKS),
    Target(
        "syncguard/_lock/held.py",
        ("tests/unit/test_held.py", *_BLOCKS, "tests/unit/test_options.py"),
    ),
    Target(
        "syncguard/current.py",
        ("tests/unit/test_current.py", *_BLOCKS, "tests/celery/test_nesting.py"),
    ),
    Target(
        "syncguard/_lock/acquire_with_retries.py",
        ("tests/unit/test_acquire_with_retries.py", "tests/redis/test_lock.py"),
    ),
    Target(
        "syncguard/redis/listing.py",
        ("tests/redis/test_listing.py", "tests/redis/test_find_live_lock.py", *_SCRIPTS[-1:]),
    ),
    Target(
        "syncguard_django/force_release.py",
        (
            "tests/django/test_force_release.py",
            "tests/django/test_admin.py",
            "tests/django/test_release_command.py",
        ),
        ("release", "_Audit.write", "_Audit._save"),
    ),
    Target(
        "syncguard_django/fencing/row_claims.py",
        (
            "tests/django/test_fenced_writes.py",
            "tests/django/test_fence_regression.py",
            "tests/django/test_fence_races.py",
        ),
    ),
    Target(
        "syncguard_django/fencing/fenced_queries.py",
        (
            "tests/django/test_fenced_writes.py",
            "tests/django/test_fence_field.py",
            "tests/django/test_every_write.py",
            "tests/django/test_fencing.py",
            "tests/django/test_fence_races.py",
        ),
    ),
    Target(
        "syncguard_django/fencing/key_guard.py",
        (
            "tests/django/test_fencing.py",
            "tests/django/test_fence_regression.py",
            "tests/django/test_fence_races.py",
        ),
    ),
    Target("syncguard_celery/redelivery.py", ("tests/celery/test_redelivery_rules.py",)),
    Target(
        "syncguard_celery/interrupt_on_loss.py",
        ("tests/celery/test_interrupt_rules.py", "tests/celery/test_interrupt_on_loss.py"),
    ),
)
