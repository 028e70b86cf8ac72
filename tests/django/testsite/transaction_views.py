"""Views under ATOMIC_REQUESTS that report whether the lock is around their transaction."""

# ruff: noqa: ARG001, ARG002 - views take what the URLs give
from __future__ import annotations

import functools

from django.db import connection, transaction
from django.http import HttpResponse, JsonResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.decorators import action, api_view
from rest_framework.viewsets import ViewSet

from syncguard_django import lock, locked, locks

KEY = "invoice:{invoice_id}"
in_hooks = []
"""Whether the lock was held when a hook of ``on_commit`` ran."""


def report(invoice_id):
    transaction.on_commit(lambda: in_hooks.append(is_locked(invoice_id)))
    return JsonResponse(
        {
            "locked": is_locked(invoice_id),
            "atomic": connection.in_atomic_block,
            "blocks": len(connection.atomic_blocks),
        }
    )


def is_locked(invoice_id):
    return locks["default"].is_locked(f"invoice:{invoice_id}")


def with_wraps(view):
    @functools.wraps(view)
    def wrapper(request, *args, **kwargs):
        before.append(connection.in_atomic_block)
        return view(request, *args, **kwargs)

    return wrapper


def without_wraps(view):
    def wrapper(request, *args, **kwargs):
        return view(request, *args, **kwargs)

    return wrapper


before = []
"""Whether a transaction was open before the lock was acquired."""


@locked(key=KEY)
def plain(request, invoice_id):
    return report(invoice_id)


@with_wraps
@locked(key=KEY)
def wrapped(request, invoice_id):
    return report(invoice_id)


@method_decorator(locked(key=KEY), name="dispatch")
class Dispatch(View):
    def get(self, request, invoice_id):
        return report(invoice_id)


@locked(key=KEY)
@api_view(["GET"])
def above_api_view(request, invoice_id):
    return report(invoice_id)


@locked(key="first:{invoice_id}")
@locked(key=KEY)
def twice(request, invoice_id):
    return report(invoice_id)


@locked(key="first:{invoice_id}")
def calls_another(request, invoice_id):
    return plain(request, invoice_id)


@locked(key=KEY)
@transaction.non_atomic_requests
def opted_out_below(request, invoice_id):
    return report(invoice_id)


@transaction.non_atomic_requests
@locked(key=KEY)
def opted_out_above(request, invoice_id):
    return report(invoice_id)


@locked(key=KEY)
def broken(request, invoice_id):
    report(invoice_id)
    raise ZeroDivisionError


@locked(key=KEY, until="block")
def until_block(request, invoice_id):
    return report(invoice_id)


class Method(View):
    @locked(key=KEY)
    def get(self, request, invoice_id):
        return report(invoice_id)


@api_view(["GET"])
@locked(key=KEY)
def below_api_view(request, invoice_id):
    return report(invoice_id)


class Actions(ViewSet):
    @action(detail=False)
    @locked(key=KEY)
    def settle(self, request, invoice_id):
        return report(invoice_id)


@without_wraps
@locked(key=KEY)
def hidden(request, invoice_id):
    return report(invoice_id)


def calls_a_locked_view(request, invoice_id):
    return plain(request, invoice_id)


def inside(request, invoice_id):
    with lock(f"invoice:{invoice_id}"):
        return report(invoice_id)


@locked(key=KEY)
async def asynchronous(request, invoice_id):
    return HttpResponse("ran")


class AsyncMethod(View):
    @locked(key=KEY)
    async def get(self, request, invoice_id):
        return HttpResponse("ran")


@method_decorator(locked(key=KEY), name="dispatch")
class AsyncDispatch(View):
    async def get(self, request, invoice_id):
        return HttpResponse("ran")


urlpatterns = [
    path(f"{name}/<int:invoice_id>/", view)
    for name, view in {
        "plain": plain,
        "wrapped": wrapped,
        "dispatch": Dispatch.as_view(),
        "above_api_view": above_api_view,
        "twice": twice,
        "calls_another": calls_another,
        "opted_out_below": opted_out_below,
        "opted_out_above": opted_out_above,
        "broken": broken,
        "until_block": until_block,
        "method": Method.as_view(),
        "below_api_view": below_api_view,
        "action": Actions.as_view({"get": "settle"}),
        "hidden": hidden,
        "calls_a_locked_view": calls_a_locked_view,
        "inside": inside,
        "async": asynchronous,
        "async_method": AsyncMethod.as_view(),
        "async_dispatch": AsyncDispatch.as_view(),
    }.items()
]
