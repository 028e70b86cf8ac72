"""The landing page, the buttons on it, and the state that its script draws."""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import ensure_csrf_cookie
from django.views.decorators.http import require_GET, require_POST

from example_project.billing.models import Invoice
from example_project.story import scene_player
from example_project.story.models import Scene, now_ms
from example_project.story.scenes import KINDS

HISTORY = 12
INVOICES = 6


@require_GET
@ensure_csrf_cookie
def landing(request: HttpRequest) -> HttpResponse:
    kinds = [(kind, kind.missing()) for kind in KINDS.values()]
    return render(request, "story/landing.html", {"kinds": kinds})


@require_POST
def play(request: HttpRequest, kind: str) -> HttpResponse:
    """Start a scene. The script gets a status; a browser without script gets the page again."""
    if kind not in KINDS:
        raise Http404
    refusal = KINDS[kind].missing()
    if not refusal and not scene_player.play_in_background(kind):
        refusal = "Another scene is being played."
    if "application/json" not in request.headers.get("Accept", ""):
        return redirect("landing")
    return JsonResponse({"refusal": refusal}, status=409 if refusal else 202)


@require_GET
@never_cache
def state(request: HttpRequest) -> HttpResponse:
    """Everything the page shows: one scene in full, and the names of the others."""
    scenes = list(Scene.objects.order_by("-pk")[:HISTORY])  # once: one may begin meanwhile
    wanted = request.GET.get("scene", "")
    shown = scenes[0] if scenes else None
    if wanted.isdecimal():
        shown = Scene.objects.filter(pk=int(wanted[:15])).first() or shown
    return JsonResponse(
        {
            "now": now_ms(),
            "playing": scene_player.is_playing(),
            "scene": None if shown is None else _scene(shown),
            "history": [_heading(scene) for scene in scenes],
            "invoices": [_invoice(i) for i in Invoice.objects.order_by("-pk")[:INVOICES]],
        }
    )


def _heading(scene: Scene) -> dict[str, Any]:
    return {
        "id": scene.pk,
        "kind": scene.kind,
        "title": KINDS[scene.kind].title,
        "key": scene.key,
        "ok": scene.ok,
        "started": scene.started_ms,
        "ended": scene.ended_ms,
    }


def _scene(scene: Scene) -> dict[str, Any]:
    fields = ("kind", "fence", "pid", "task_id", "detail", "at_ms", "until_ms")
    return {
        **_heading(scene),
        "steps": list(scene.steps.values("text", "ok", "at_ms")),
        "events": list(scene.events.values(*fields)),
    }


def _invoice(invoice: Invoice) -> dict[str, Any]:
    return {
        "number": invoice.number,
        "customer": invoice.customer,
        "amount": str(invoice.amount),
        "settled": invoice.settled_at is not None,
        "payments": invoice.payment_set.count(),
        "fence": invoice.fence,
    }
