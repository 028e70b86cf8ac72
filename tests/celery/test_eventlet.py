"""Under eventlet a task cannot be interrupted: what would interrupt it is refused at decoration."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("eventlet")

PROGRAM = """
    import warnings

    warnings.simplefilter("ignore")  # eventlet warns that it is no longer developed
    import eventlet

    if {patched}:
        eventlet.monkey_patch()
    from celery import Celery

    from syncguard import LockError
    from syncguard_celery import locked_task

    try:
        locked_task(app=Celery(), key="k", **{options})(lambda: None)
        print("accepted")
    except LockError as error:
        print(error.code, error)
"""


def decorated(options, *, patched=True):
    program = textwrap.dedent(PROGRAM.format(options=options, patched=patched))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout


@pytest.mark.parametrize("options", [{}, {"on_lost": "raise"}, {"on_lost": "retry"}])
def test_a_task_that_its_lost_lock_interrupts_is_refused(options):
    assert decorated(options).startswith("InvalidArgument on_lost=")


def test_a_task_that_is_told_is_accepted():
    assert decorated({"on_lost": "signal"}) == "accepted\n"


def test_an_eventlet_that_is_only_imported_changes_nothing():
    assert decorated({}, patched=False) == "accepted\n"
