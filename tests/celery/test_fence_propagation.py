"""Tasks that are published under a lock inherit its fence."""

from __future__ import annotations

import pytest
from celery import chain, chord, group

from syncguard_celery import current_fence, current_lock, inherited_fence
from syncguard_celery.message_header import HEADER, MAX_FENCES, key_digest, merged


@pytest.fixture
def family(prefork, worker_app, scene, monkeypatch):
    """Publishes a parent task; the worker also serves what it publishes."""
    key = f"family:{scene.name}"

    def publish(signature):
        return signature.set(queue=prefork.queue)

    publish.key = key
    publish.inherited = lambda times=1: scene.seen("inherited", times, name=key)
    return publish


@pytest.fixture(scope="module", autouse=True)
def default_worker(start_worker):
    """Serves the default queue, to which tasks publish their children."""
    worker = start_worker("threads", 4, queue="prefork")
    yield worker
    worker.stop()


@pytest.mark.parametrize("how", ["child", "called", "grandchild", "group", "chord", "replace"])
def test_what_a_task_publishes_inherits_its_fence(family, worker_app, scene, how):
    family(worker_app.parent.s(scene.name, how)).delay()
    times = {"group": 2, "chord": 3}.get(how, 1)
    assert family.inherited(times)["inherited"] == "000000000000001"


def test_links_and_chain_steps_inherit_after_the_lock_is_released(family, worker_app, scene):
    step = family(worker_app.child.si(family.key))
    parent = family(worker_app.parent.si(scene.name, "nothing"))
    assert chain(parent, step).delay().get(timeout=30) == "000000000000001"
    parent.apply_async(link=step)
    assert family.inherited(2)["inherited"] == "000000000000002"


def test_the_body_of_a_chord_of_locked_tasks_inherits(family, worker_app, scene):
    parent = family(worker_app.parent.si(scene.name, "nothing"))
    body = family(worker_app.gather.s(family.key))
    assert chord([parent], body).delay().get(timeout=30) == "000000000000001"


def test_a_fence_passes_through_tasks_without_locks(family, worker_app, scene):
    parent = family(worker_app.parent.si(scene.name, "nothing"))
    chain(parent, family(worker_app.middle.s(family.key))).delay().get(timeout=30)
    assert family.inherited()["inherited"] == "000000000000001"


def test_the_header_holds_no_key_and_no_lock_id(family, worker_app, scene):
    family(worker_app.parent.s(scene.name)).delay()
    header = family.inherited()["header"]
    assert header == {"fences": {key_digest(family.key): "000000000000001"}}
    assert scene.name not in str(header)


def test_fences_are_sent_when_an_integration_rewrites_headers(family, worker_app, scene):
    step = family(worker_app.child.si(family.key)).set(task_id=f"rewritten-{scene.name}")
    parent = family(worker_app.parent.si(scene.name, "nothing"))
    parent.apply_async(link=step)
    assert family.inherited()["inherited"] == "000000000000001"


def test_a_task_published_without_a_lock_inherits_nothing(family, worker_app):
    assert family(worker_app.child.s(family.key)).delay().get(timeout=30) is None


def test_a_header_copied_by_hand_has_no_effect(family, worker_app, scene, broker):
    queue = f"aside-{scene.name}"
    worker_app.child.apply_async((family.key,), queue=queue, headers={HEADER: {"lock": "x" * 22}})
    with broker.client() as client:
        assert b"x" * 22 not in client.lpop(queue)


def test_nested_tasks_on_one_key_reenter_the_lock(family, worker_app, scene):
    fences = family(worker_app.outer.s(scene.name)).delay().get(timeout=30)
    assert fences == ["000000000000001"] * 4


def test_outside_of_tasks_there_is_no_inherited_fence():
    assert current_lock() is None
    assert current_fence() is None
    assert inherited_fence("any:key") is None


def test_the_number_of_fences_in_a_header_is_limited():
    layers = [{f"key-{n}": f"{n:015d}"} for n in range(MAX_FENCES + 10)]
    fences = merged(*layers)
    assert len(fences) == MAX_FENCES
    assert "key-0" not in fences
    assert f"key-{MAX_FENCES + 9}" in fences


def test_the_newer_fence_of_a_key_is_sent():
    assert merged({"a": "1", "b": "1"}, {"a": "2"}) == {"b": "1", "a": "2"}
    assert list(merged({"a": "1", "b": "1"}, {"a": "2"})) == ["b", "a"]


class TestEager:
    """With ``task_always_eager`` nothing is published, but tasks inherit the same fences."""

    @pytest.fixture(autouse=True)
    def eager(self, worker_app):
        worker_app.app.conf.task_always_eager = True
        yield
        worker_app.app.conf.task_always_eager = False

    @pytest.mark.parametrize("how", ["child", "grandchild", "group"])
    def test_children_inherit(self, worker_app, scene, how):
        worker_app.parent.delay(scene.name, how)
        notes = [n for n in scene.notes(f"family:{scene.name}") if n["event"] == "inherited"]
        assert {n["inherited"] for n in notes} == {"000000000000001"}

    def test_links_inherit(self, worker_app, scene):
        key = f"family:{scene.name}"
        worker_app.parent.apply_async((scene.name, "nothing"), link=worker_app.child.si(key))
        assert scene.notes(key)[-1]["inherited"] == "000000000000001"

    def test_retries_inherit(self, worker_app, scene):
        assert worker_app.retrying.delay(scene.name).get() == 2
        entered = [line for line in scene.notes() if line["event"] == "enter"]
        assert [line["inherited"] for line in entered] == [None, *[f"{n:015d}" for n in (1, 2)]]

    def test_nested_tasks_reenter_the_lock(self, worker_app, scene):
        assert worker_app.outer.delay(scene.name).get() == ["000000000000001"] * 4

    def test_groups_of_locked_tasks_run(self, worker_app, scene):
        results = group(
            worker_app.visiting.s(scene.name), worker_app.visiting.s(scene.name)
        ).delay()
        assert results.get() == ["000000000000001", "000000000000002"]
