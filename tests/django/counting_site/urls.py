# ruff: noqa: ARG001, ARG002 - views take what the URLs give
from __future__ import annotations

import time

from asgiref.sync import sync_to_async
from django.db import connection, transaction
from django.http import HttpResponse
from django.urls import path
from django.views import View
from rest_framework.decorators import action
from rest_framework.viewsets import ViewSet

from syncguard_django import alock, locked


def count():
    """Read, wait, write: without a lock, an update in between is lost."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT n FROM counter")
        (n,) = cursor.fetchone()
        time.sleep(0.002)
        cursor.execute("UPDATE counter SET n = %s", [n + 1])
    return HttpResponse("counted")


@locked(key="counter")
def plain(request):
    return count()


def unlocked(request):
    return count()


class Method(View):
    @locked(key="counter")
    def get(self, request):
        return count()


class Actions(ViewSet):
    @action(detail=False)
    @locked(key="counter")
    def count(self, request):
        return count()


@locked(key="counter")
async def asynchronous(request):
    return await sync_to_async(transaction.atomic(count))()


async def asynchronous_with(request):
    async with alock("counter"):
        return await sync_to_async(transaction.atomic(count))()


urlpatterns = [
    path("plain/", plain),
    path("unlocked/", unlocked),
    path("method/", Method.as_view()),
    path("action/", Actions.as_view({"get": "count"})),
    path("async/", asynchronous),
    path("async-with/", asynchronous_with),
]
