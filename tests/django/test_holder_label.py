"""The holder is named by default: function or view, process, host."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest
from django.core.management.base import BaseCommand
from django.http import HttpResponse
from django.utils.decorators import method_decorator
from django.views import View

from syncguard_django import alock, alocks, lock, locked, locks
from syncguard_django.holder_label import MAX_BYTES, label_of

HERE = f"(pid {os.getpid()})@{socket.gethostname()}"


def holder_of(key):
    return locks["default"].lookup(key=key).holder


@locked(key="function")
def function():
    return holder_of("function")


@locked(key="named", holder="me")
def named():
    return holder_of("named")


@locked(key="view:{number}")
def view(_request, number):
    return HttpResponse(holder_of(f"view:{number}"))


@method_decorator(locked(key="view:{number}"), name="dispatch")
class Whole(View):
    def get(self, _request, number):
        return HttpResponse(holder_of(f"view:{number}"))


class Command(BaseCommand):
    def handle(self):
        with lock("command"):
            return holder_of("command")


pytestmark = pytest.mark.usefixtures("backend")


def test_a_locked_function_is_named_with_its_process_and_host():
    assert function() == f"{__name__}.function{HERE}"


def test_a_given_label_is_used():
    assert named() == "me"
    with lock("k", holder="me too"):
        assert holder_of("k") == "me too"


def test_a_view_is_named(rf):
    assert view(rf.get("/"), number=1).content.decode() == f"{__name__}.view{HERE}"


def test_a_view_of_a_class_is_named_after_the_class(rf):
    answer = Whole.as_view()(rf.get("/"), number=2)
    assert answer.content.decode() == f"{__name__}.Whole.dispatch{HERE}"


def test_a_command_that_locks_is_named():
    assert Command().handle().endswith(f"handle{HERE}")


def test_a_block_is_named_after_the_function_around_it():
    with lock("block"):
        assert holder_of("block").endswith(
            f"test_a_block_is_named_after_the_function_around_it{HERE}"
        )


def test_asyncio_names_the_holder_too():
    @locked(key="whole")
    async def whole():
        return holder_of("whole")

    async def block():
        async with alock("part"):
            return holder_of("part")

    assert asyncio.run(whole()).endswith(f"whole{HERE}")
    assert asyncio.run(block()).endswith(f"block{HERE}")


def test_a_lock_created_at_import_names_the_module_and_no_process():
    source = "from syncguard_django import lock\nmade = lock('k')\n"
    module = {"__name__": "shop.jobs"}
    exec(compile(source, "jobs.py", "exec"), module)  # noqa: S102 - our own
    with module["made"]:
        assert holder_of("k") == f"shop.jobs@{socket.gethostname()}"


def test_a_child_process_is_named_by_its_own_id():
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, label_of(function).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with open(read) as pipe:
        assert f"(pid {child})@" in pipe.read()


def test_a_very_long_name_is_cut():
    def body():
        pass

    body.__qualname__ = "x\n" * 500
    label = label_of(body)
    assert len(label.encode()) <= MAX_BYTES
    assert label.isprintable()
    with lock("k", holder=label):
        assert holder_of("k") == label


def test_a_backend_acquire_is_named_after_the_calling_function():
    with locks["default"].acquire("by-hand") as taken:
        assert taken
        assert holder_of("by-hand").endswith(
            f"test_a_backend_acquire_is_named_after_the_calling_function{HERE}"
        )


def test_a_backend_acquire_in_a_coroutine_is_named_too():
    async def taking():
        async with await alocks["default"].acquire("by-hand") as taken:
            assert taken
            return await alocks["default"].lookup(key="by-hand")

    assert asyncio.run(taking()).holder.endswith(f"taking{HERE}")
