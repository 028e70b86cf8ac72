"""The scenes. Each does something to a lock, and checks the result in the database.

The landing page plays one scene at a time, ``--check`` plays all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from django.utils import timezone

from example_project.billing.models import FeedImport, Invoice, Payment, Report, Transfer
from example_project.billing.tasks import import_feed, nightly_report, settle_invoice
from example_project.story import journal
from example_project.story.controls import controls
from example_project.story.models import Event, now_ms
from example_project.story.scene_run import SceneRun, stopping
from syncguard import TIME_TOLERANCE_MS
from syncguard_django import locks

TASKS = 20
MACHINES = 3
IMPORTS = 5
WORK_S = 1.0
"""How long a holder works undisturbed, so that the page shows it."""
PAUSE_S = 3.0
SUPPLIER = "acme"
STORE = {"redis": "Redis", "postgres": "PostgreSQL", "sqlite": "SQLite"}[
    locks["default"].capabilities.backend
]


@dataclass(frozen=True)
class SceneKind:
    """A scene that can be played, its texts on the page, and what it needs."""

    name: str
    title: str
    button: str
    text: str
    play: Callable[[], None]
    missing: Callable[[], str] = lambda: ""
    """Returns why it cannot be played here; empty if it can."""


def settle() -> None:
    invoice = _new_invoice(bank_ms=700)
    with SceneRun("settle", invoice.lock_key) as scene:
        for _ in range(TASKS):
            settle_invoice.delay(invoice.pk)
        scene.step(f"{TASKS} tasks were sent at once, each to settle {invoice}.")
        _wait_until_settled(scene, invoice)
        scene.wait_for(
            f"{TASKS} tasks to end", lambda: scene.events("released").count() == TASKS or None
        )
        fences = [event.fence for event in scene.events("acquired")]
        scene.check(
            len(fences) == TASKS and fences == sorted(set(fences)),
            f"Each held the lock once, one after the other: fences {_short(fences[0])} to"
            f" {_short(fences[-1])}.",
        )
        _check_payments(scene, invoice)


def kill() -> None:
    assert controls.kill is not None  # noqa: S101 - else the scene is missing something
    invoice = _new_invoice(bank_ms=8_000)
    with SceneRun("kill", invoice.lock_key) as scene:
        settle_invoice.delay(invoice.pk)
        first = scene.wait_for("a holder", scene.events("acquired").first)
        scene.step(f"Process {first.pid} settles {invoice} under fence {_short(first.fence)}.")
        scene.wait_for("the bank", Transfer.objects.filter(invoice=invoice).exists)
        stopping.wait(WORK_S)
        controls.kill(first.pid)
        killed_ms = now_ms()
        left = locks["default"].lookup(key=scene.key)
        until_ms = left.expires_at_ms if left else 0
        journal.note("killed", fence=first.fence, pid=first.pid, until_ms=until_ms)
        scene.step(f"kill -9 {first.pid}: it could neither finish nor release.")
        second = scene.wait_for("the next holder", _holder_after(scene, first))
        scene.check(
            left is not None and second.at_ms >= until_ms - TIME_TOLERANCE_MS,
            f"No process extended the lock: it was free {(until_ms - killed_ms) / 1000:.1f} s"
            " later.",
        )
        scene.check(
            second.fence > first.fence,
            f"The task was delivered again, to process {second.pid}, with the higher fence"
            f" {_short(second.fence)}.",
        )
        _wait_until_settled(scene, invoice)
        _check_late_letter(scene, first)
        _check_payments(scene, invoice)


def pause() -> None:
    assert controls.pause is not None  # noqa: S101 - else the scene is missing something
    invoice = _new_invoice(bank_ms=8_000)
    with SceneRun("pause", invoice.lock_key) as scene:
        settle_invoice.delay(invoice.pk)
        first = scene.wait_for("a holder", scene.events("acquired").first)
        scene.step(f"Process {first.pid} settles {invoice} under fence {_short(first.fence)}.")
        scene.wait_for("the bank", Transfer.objects.filter(invoice=invoice).exists)
        stopping.wait(WORK_S)
        with controls.pause():
            paused_ms = now_ms()
            journal.note("paused")
            scene.step(f"{STORE} is paused for {PAUSE_S:.0f} s and extends no lock.")
            stopping.wait(PAUSE_S)
            lost_in_time = scene.events("lost").exists()
            journal.note("resumed")
        lost = scene.wait_for("the loss", scene.events("lost").first)
        scene.check(
            lost_in_time,
            f"The holder learned of the loss while {STORE} was still paused,"
            f" {(lost.at_ms - paused_ms) / 1000:.1f} s after its start, and stopped: LockLost.",
        )
        second = scene.wait_for("the next holder", _holder_after(scene, first))
        scene.check(
            second.fence > first.fence,
            f"The task ran again, with the higher fence {_short(second.fence)}.",
        )
        _wait_until_settled(scene, invoice)
        _check_late_letter(scene, first)
        _check_payments(scene, invoice)


def feed() -> None:
    before = FeedImport.objects.count()
    with SceneRun("feed", f"feed:{SUPPLIER}") as scene:
        ids = [import_feed.delay(SUPPLIER).id for _ in range(IMPORTS)]
        scene.step(f"delay() was called {IMPORTS} times for the prices of {SUPPLIER}.")
        scene.check(
            len(set(ids)) == 1 and scene.events("duplicate").count() == IMPORTS - 1,
            f"One task was queued. The other {IMPORTS - 1} calls queued nothing, and returned the"
            " result of the first.",
        )
        scene.wait_for("the import", scene.events("released").exists)
        imports = FeedImport.objects.count() - before
        scene.check(imports == 1, f"The feed was imported {_times(imports)}.")


def report() -> None:
    day = timezone.now().date().isoformat()
    before = Report.objects.count()
    with SceneRun("report", f"report:{day}") as scene:
        nightly_report.delay(day)
        scene.step(f"{MACHINES} machines start the report of {day}. Their clocks differ.")
        first = scene.wait_for("the first report", scene.events("released").first)
        kept = locks["default"].lookup(key=scene.key)
        scene.check(kept is not None, "The first was done at once, and keeps the lock for 3 s.")
        if kept is not None:
            journal.note("kept", fence=kept.fence, pid=first.pid, until_ms=kept.expires_at_ms)
        for _ in range(MACHINES - 1):
            nightly_report.delay(day)
        scene.wait_for(
            "the others", lambda: scene.events("skipped").count() == MACHINES - 1 or None
        )
        reports = Report.objects.count() - before
        scene.check(
            reports == 1,
            f"The other {MACHINES - 1} started later and skipped: the report was written"
            f" {_times(reports)}.",
        )
        scene.wait_for("the lock to be free", lambda: not locks["default"].is_locked(scene.key))


def _needs_kill() -> str:
    return "" if controls.kill else "Only the demo's own worker can be killed."


def _needs_pause() -> str:
    return "" if controls.pause else "Only a store of the demo's own can be paused."


KINDS = {
    kind.name: kind
    for kind in (
        SceneKind(
            "settle",
            "One invoice, 20 tasks",
            "Settle one invoice from 20 tasks at once",
            "Twenty tasks want to settle the same invoice. It must be paid once.",
            settle,
        ),
        SceneKind(
            "kill",
            "A killed worker",
            "Kill -9 the worker that holds the lock",
            "The holder dies in the middle of its work. Its late write must be refused.",
            kill,
            _needs_kill,
        ),
        SceneKind(
            "pause",
            f"A silent {STORE}",
            f"Pause {STORE} for 3 s",
            f"The lock expires while {STORE} is silent. The holder must learn of it in time.",
            pause,
            _needs_pause,
        ),
        SceneKind(
            "feed",
            "One feed, five imports",
            "Import the same feed five times",
            "Five calls publish the same import. It must be queued once.",
            feed,
        ),
        SceneKind(
            "report",
            "A nightly report",
            "Start the report on three machines",
            "Three schedulers start it, and their clocks differ. It must be written once.",
            report,
        ),
    )
}
"""In the order in which ``--check`` plays them."""


def _new_invoice(bank_ms: int) -> Invoice:
    customers = ("Ada Bakery", "Bruno Bikes", "Clara Cinema", "Dora Design", "Emil Electric")
    number = Invoice.objects.count()
    invoice: Invoice = Invoice.objects.create(
        customer=customers[number % len(customers)],
        amount=f"{120 + 37 * number % 800}.50",
        bank_ms=bank_ms,
    )
    return invoice


def _wait_until_settled(scene: SceneRun, invoice: Invoice) -> None:
    """Wait until it is paid and the letter of the holder that paid it is filed."""
    scene.wait_for(
        "the letter of the bank",
        Invoice.objects.filter(pk=invoice.pk, confirmed_at__isnull=False).exists,
    )


def _check_payments(scene: SceneRun, invoice: Invoice) -> None:
    payments = Payment.objects.filter(invoice=invoice).count()
    scene.check(payments == 1, f"{invoice} was settled {_times(payments)}.")


def _check_late_letter(scene: SceneRun, first: Event) -> None:
    late = scene.wait_for("the late write", scene.events("refused").first)
    scene.check(
        late.fence == first.fence,
        "A letter that the first holder had ordered arrived late. Its write, with fence"
        f" {_short(late.fence)}, was refused: StaleFence.",
    )


def _holder_after(scene: SceneRun, first: Event) -> Callable[[], Event | None]:
    later: Callable[[], Event | None] = scene.events("acquired").filter(pk__gt=first.pk).first
    return later


def _short(fence: str) -> str:
    return fence.lstrip("0")


def _times(count: int) -> str:
    return "exactly once" if count == 1 else f"{count} times"
