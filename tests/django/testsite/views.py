# ruff: noqa: ARG001, ARG002 - views take what the URLs give
from __future__ import annotations

from django.http import HttpResponse
from django.utils.decorators import method_decorator
from django.views import View

from syncguard import Acquisition
from syncguard_django import current_lock, lock, locked

AT_ONCE = Acquisition(max_retries=0, timeout_ms=60_000)


@locked(key="invoice:{invoice_id}", acquisition=AT_ONCE)
def settle(request, invoice_id):
    return HttpResponse(current_lock().fence)


@locked(key="invoice:{invoice_id}", acquisition=AT_ONCE)
async def asettle(request, invoice_id):
    return HttpResponse(current_lock().fence)


class Settle(View):
    @locked(key=lambda _view, _request, invoice_id: f"invoice:{invoice_id}", acquisition=AT_ONCE)
    def get(self, request, invoice_id):
        return HttpResponse(current_lock().fence)


@method_decorator(locked(key="invoice:{invoice_id}", acquisition=AT_ONCE), name="dispatch")
class SettleAll(View):
    def get(self, request, invoice_id):
        return HttpResponse(current_lock().fence)


@method_decorator(locked(key="invoice:{invoice_id}", acquisition=AT_ONCE), name="get")
class SettleAllAsync(View):
    async def get(self, request, invoice_id):
        return HttpResponse(current_lock().fence)


def broken(request):
    """Handles no error of the lock."""
    with lock("invoice:1"):
        return HttpResponse("ok")
