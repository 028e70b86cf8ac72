"""Many tasks on few keys, on two workers whose processes are killed."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections import defaultdict

import pytest

KEYS, TASKS, DYING = 10, 200, 12


@pytest.fixture
def rows(worker_app):
    """A table with one fenced row for each key, and a history of every change."""
    with contextlib.closing(sqlite3.connect(worker_app.rows_file(), isolation_level=None)) as rows:
        rows.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, fence TEXT)")
        rows.execute("CREATE TABLE history (number INTEGER, was TEXT, became TEXT)")
        rows.execute(
            "CREATE TRIGGER remember AFTER UPDATE ON rows BEGIN"
            " INSERT INTO history VALUES (new.number, old.fence, new.fence); END"
        )
        rows.executemany("INSERT INTO rows VALUES (?, '')", [(n,) for n in range(KEYS)])
        yield rows


@pytest.mark.rounds
def test_fences_rise_and_no_two_tasks_overlap_on_two_workers_with_kill_9(
    start_worker, worker_app, scene, rows, eventually
):
    first = start_worker("prefork", 4)
    second = start_worker("prefork", 4, queue=first.queue)
    results = [
        worker_app.stress.apply_async(
            (scene.name, job % KEYS, job, job % (TASKS // DYING) == 5), queue=first.queue
        )
        for job in range(TASKS)
    ]
    # Some tasks kill their own process; this kills processes from outside, at any point. Not
    # the parents: what one has taken from Redis a moment ago and not yet noted is lost with it.
    for worker in (first, second):
        eventually(lambda: len(scene.notes()) > TASKS // 4)
        worker.kill_children()

    deadline = time.monotonic() + 240
    pending = dict(enumerate(results))
    while pending and time.monotonic() < deadline:
        pending = {job: result for job, result in pending.items() if not result.ready()}
        time.sleep(0.1)
    assert not pending, {job: (result.id, result.state) for job, result in pending.items()}
    assert all(result.successful() for result in results)

    per_key = defaultdict(list)
    for line in scene.notes():
        per_key[line["number"]].append(line)
    assert len(per_key) == KEYS
    for number, lines in per_key.items():
        inside = ""
        for line in lines:
            if line["event"] == "enter":
                assert line["fence"] > inside, f"fences of key {number} must strictly increase"
                inside = line["fence"]
            else:
                assert line["fence"] == inside, f"two tasks were inside on key {number}"
                assert line["changed"] == 1
        (now,) = rows.execute("SELECT fence FROM rows WHERE number = ?", (number,)).fetchone()
        assert now == inside
    history = rows.execute("SELECT was, became FROM history").fetchall()
    assert len(history) >= TASKS
    assert all(was < became for was, became in history)
    died = [line for line in scene.notes() if line["event"] == "enter"]
    assert len(died) >= TASKS + DYING
