"""What the decorators accept, refuse and pass on; which backend is used; labels."""

from __future__ import annotations

import json
import pickle
import sys
import warnings
from types import SimpleNamespace

import pytest
import redis
from celery import Celery, Task

from syncguard import AcquisitionTimeout, InvalidArgument, LockError, ShortTTLWarning
from syncguard.redis import AsyncRedisBackend, RedisBackend
from syncguard_celery import LockContended, locked, locked_task
from syncguard_celery.configured_backends import backend_of
from syncguard_celery.holder_label import holder_label, task_id_in
from syncguard_celery.misspelt_options import refuse_misspelt
from syncguard_celery.options import LockOptions
from syncguard_celery.task_call import MARK, locked_function


@pytest.fixture
def app():
    app = Celery("options", broker="memory://", fixups=[], set_as_current=False)
    yield app
    app.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"ttl_ms": 0},
        {"ttl_ms": 1.5},
        {"ttl_ms": True},
        {"pending_ttl_ms": -1},
        {"contention_timeout_ms": 0},
        {"min_hold_ms": "1"},
        {"max_hold_ms": 0},
        {"max_hold_ms": 1_000, "auto_extend": False},
        {"at": "once"},
        {"on_contention": "ignore"},
        {"on_lost": "explode"},
        {"on_unavailable": "hope"},
        {"unavailable_timeout_ms": None},
        {"unavailable_timeout_ms": 600},  # seconds
        {"using": "default", "backend": "redis://localhost"},
    ],
)
def test_invalid_options_are_refused_when_the_task_is_made(wrong):
    with pytest.raises(LockError) as refused:
        locked_task(key="k", **wrong)
    assert refused.value.code == "InvalidArgument"


def test_a_timeout_given_in_seconds_is_refused_with_the_unit():
    with pytest.raises(LockError, match="unit is milliseconds: ten minutes are 600_000"):
        locked_task(key="k", unavailable_timeout_ms=600)


def test_both_decorators_pass_every_option_on(app, syncguard_backend):
    given = {
        "backend": syncguard_backend,
        "on_contention": "wait",
        "contention_timeout_ms": 1,
        "skip_result": "skipped",
        "ttl_ms": 2,
        "auto_extend": True,
        "max_hold_ms": 3,
        "min_hold_ms": 4,
        "on_lost": "signal",
        "on_unavailable": "fail",
        "unavailable_timeout_ms": 5_000,
    }
    at_publish = {"at": "publish", "pending_ttl_ms": 5}

    @locked_task(app=app, key="k", **given, **at_publish)
    def task(): ...

    @locked(key="k", **given)
    def function(): ...

    assert locked_function(task).options == LockOptions(**given, **at_publish)
    assert getattr(function, MARK).options == LockOptions(**given)
    brief = locked(key="k", auto_extend=False, using="other")(lambda: None)
    assert getattr(brief, MARK).options == LockOptions(auto_extend=False, using="other")


def test_a_locked_task_needs_a_key():
    with pytest.raises(LockError, match="needs a key"):

        @locked_task
        def task(): ...


@pytest.mark.parametrize("lock", [locked(key="k"), locked_task(key="k")], ids=["locked", "task"])
def test_a_celery_task_cannot_be_locked(app, lock):
    @app.task(shared=False)
    def task(): ...

    with pytest.raises(LockError, match=r"put @locked below @app\.task"):
        lock(task)


def test_generator_and_async_functions_cannot_be_locked():
    def generator():
        yield

    async def coroutine(): ...

    async def asynchronous_generator():
        yield

    for function in (generator, coroutine, asynchronous_generator):
        with pytest.raises(LockError, match="its body runs after the call returns"):
            locked(key="k")(function)


def test_options_of_celery_are_passed_on(app):
    @locked_task(app=app, key="k", name="other.name", max_retries=7, acks_late=True)
    def task():
        """Its text."""

    assert (task.name, task.max_retries, task.acks_late) == ("other.name", 7, True)
    assert task.__doc__ == "Its text."


def test_a_task_of_one_app_is_not_registered_in_another(app):
    @locked_task(app=app, key="k", name="only.here")
    def task(): ...

    other = Celery("other", fixups=[], set_as_current=False)
    app.finalize()
    other.finalize()
    assert "only.here" in app.tasks
    assert "only.here" not in other.tasks
    other.close()


def test_without_an_app_it_is_a_shared_task(app):
    @locked_task(key="k", name="everywhere")
    def task(): ...

    app.finalize()
    assert "everywhere" in app.tasks


def test_the_base_class_keeps_its_own_apply_async(app):
    class Counting(Task):
        calls = 0

        def apply_async(self, *args, **options):
            type(self).calls += 1
            return super().apply_async(*args, **options)

    @locked_task(app=app, key="k", base=Counting)
    def task(): ...

    task.delay()
    assert task.calls == 1


class TestBackends:
    def test_the_backend_of_the_decorator_is_used(self, app, syncguard_backend):
        assert backend_of(LockOptions(backend=syncguard_backend), app) is syncguard_backend

    def test_a_callable_makes_the_backend_once(self, app):
        made = []

        def make():
            made.append(RedisBackend.from_url("redis://127.0.0.1:1"))
            return made[-1]

        options = LockOptions(backend=make)
        assert backend_of(options, app) is backend_of(options, app)
        assert len(made) == 1

    @pytest.mark.parametrize("mistaken", [42, redis.Redis()])
    def test_a_value_that_is_not_a_backend_is_refused_when_the_task_is_decorated(self, mistaken):
        with pytest.raises(LockError, match=r"backend must be a backend, a callable .* or a URL"):
            LockOptions(backend=mistaken)

    def test_an_asyncio_backend_is_refused_when_the_task_is_decorated(self):
        with pytest.raises(LockError, match="a task needs a blocking backend"):
            LockOptions(backend=AsyncRedisBackend.from_url("redis://127.0.0.1:1"))

    @pytest.mark.parametrize("makes", ["redis://:secret@127.0.0.1:1", None])
    def test_a_callable_that_returns_no_backend_is_refused(self, app, makes):
        options = LockOptions(backend=lambda: makes)
        with pytest.raises(
            LockError, match="return value of the backend callable must be a backend"
        ) as caught:
            backend_of(options, app)
        assert "secret" not in str(caught.value)

    def test_a_backend_class_is_instantiated(self, app):
        class Local(RedisBackend):
            def __init__(self):
                super().__init__(redis.Redis(port=1))

        assert isinstance(backend_of(LockOptions(backend=Local), app), Local)

    def test_the_error_for_an_invalid_setting_names_the_setting(self, app):
        app.conf.syncguard_backend = 42
        with pytest.raises(LockError, match=r"app\.conf\.syncguard_backend must be a backend"):
            backend_of(LockOptions(), app)

    def test_the_backend_comes_from_the_apps_setting(self, app, syncguard_backend):
        app.conf.syncguard_backend = syncguard_backend
        assert backend_of(LockOptions(), app) is syncguard_backend

    def test_the_apps_setting_may_be_a_url(self, app):
        app.conf.syncguard_backend = "redis://127.0.0.1:1/3"
        backend = backend_of(LockOptions(), app)
        assert isinstance(backend, RedisBackend)
        assert backend_of(LockOptions(), app) is backend

    def test_a_changed_setting_takes_effect(self, app, syncguard_backend):
        app.conf.syncguard_backend = "redis://127.0.0.1:1/3"
        backend_of(LockOptions(), app)
        app.conf.syncguard_backend = syncguard_backend
        assert backend_of(LockOptions(), app) is syncguard_backend

    def test_the_setting_may_have_a_namespace(self, app, syncguard_backend):
        settings = SimpleNamespace(CELERY_SYNCGUARD_BACKEND=syncguard_backend)
        app.config_from_object(settings, namespace="CELERY")
        assert backend_of(LockOptions(), app) is syncguard_backend

    def test_using_names_an_alias_of_django(self, app, syncguard_backend, monkeypatch):
        django = SimpleNamespace(locks={"default": "default's", "other": syncguard_backend})
        monkeypatch.setitem(sys.modules, "syncguard_django", django)
        assert backend_of(LockOptions(using="other"), app) is syncguard_backend
        assert backend_of(LockOptions(), app) == "default's"

    def test_the_error_for_a_missing_backend_says_what_to_do(self, app, monkeypatch):
        monkeypatch.delitem(sys.modules, "syncguard_django", raising=False)
        with pytest.raises(LockError, match=r"app\.conf\.syncguard_backend"):
            backend_of(LockOptions(), app)


class TestLabels:
    def test_the_task_id_can_be_read_from_the_label(self):
        label = holder_label("shop.tasks.settle", "0b7c")
        assert label.startswith("shop.tasks.settle[0b7c]@")
        assert task_id_in(label, "shop.tasks.settle") == "0b7c"

    def test_a_label_with_another_task_name_has_no_task_id(self):
        assert task_id_in(holder_label("shop.tasks.settle", "0b7c"), "shop.tasks.refund") is None

    @pytest.mark.parametrize("label", [None, "", "somebody", "settle@host", "settle[]@host"])
    def test_other_holders_have_no_task_id(self, label):
        assert task_id_in(label, "settle") is None

    def test_a_long_name_is_cut_and_still_found(self):
        name = "x" * 300
        label = holder_label(name, "0b7c")
        assert len(label.encode()) <= 256
        assert task_id_in(label, name) == "0b7c"

    def test_an_id_that_does_not_fit_is_left_out(self):
        label = holder_label("settle", "x" * 300)
        assert label.startswith("settle@")

    @pytest.mark.parametrize("task_id", ["a]@b[c", "c\td"])
    def test_an_id_that_could_not_be_read_back_is_left_out(self, task_id):
        assert holder_label("settle", task_id).startswith("settle@")

    def test_unprintable_characters_are_replaced(self):
        assert holder_label("a\nb", "0b7c").startswith("a?b[0b7c]@")


class TestLockContended:
    error = LockContended("text", "hash", "000000000000001", 5)

    def test_it_keeps_all_fields_when_pickled(self):
        copy = pickle.loads(pickle.dumps(self.error))  # noqa: S301
        assert (copy.key_hash, copy.fence, copy.remaining_ms) == ("hash", "000000000000001", 5)
        assert str(copy) == "text"

    def test_it_is_rebuilt_from_its_arguments_as_json_results_do(self):
        copy = LockContended(*json.loads(json.dumps(self.error.args)))
        assert vars(copy) == vars(self.error) or copy.args == self.error.args

    def test_it_is_a_lock_error_and_needs_no_arguments(self):
        assert isinstance(LockContended(), LockError)
        assert isinstance(LockContended(), AcquisitionTimeout)
        assert LockContended().fence is None

    def test_its_message_attribute_is_its_text(self):
        # Sentry shows the attribute "message" of an error that has one.
        assert self.error.message == str(self.error) == "text"
        assert repr(self.error) == "LockContended('text')"


def test_a_short_ttl_causes_one_warning_for_each_task_when_it_runs(app, syncguard_backend):
    chosen = {"app": app, "backend": syncguard_backend, "ttl_ms": 30, "auto_extend": False}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("default")

        @locked_task(name="seconds", key="seconds", **chosen)
        def seconds():
            return None

        @locked_task(name="others", key="others", **chosen)
        def others():
            return None

        assert warned == [], "no warning at import"
        for task in (seconds, others, seconds, others):
            task.apply()
    found = [(w.category, w.filename, w.lineno) for w in warned]
    lines = [locked_function(t).function.__code__.co_firstlineno for t in (seconds, others)]
    assert found == [(ShortTTLWarning, __file__, line) for line in lines]


class WithOptions(Task):
    """A task class of a user, with an option that looks like one of ours."""

    ttl = None
    keys = ()


def nothing(): ...


class TestMisspelling:
    @pytest.mark.parametrize(
        ("misspelt", "meant"),
        [
            ("on_contetion", "on_contention"),
            ("on_contension", "on_contention"),
            ("oncontention", "on_contention"),
            ("ttl", "ttl_ms"),
            ("ttl_s", "ttl_ms"),
            ("tll_ms", "ttl_ms"),
            ("max_hold", "max_hold_ms"),
            ("min_hold_seconds", "min_hold_ms"),
            ("contention_timeout", "contention_timeout_ms"),
            ("autoextend", "auto_extend"),
            ("on_loss", "on_lost"),
            ("re_entrant", "reentrant"),
            ("skip_results", "skip_result"),
            ("backed", "backend"),
        ],
    )
    def test_a_misspelt_lock_option_is_refused_with_a_suggestion(self, app, misspelt, meant):
        for chosen in (app, None):
            with pytest.raises(InvalidArgument) as caught:
                locked_task(key="k", app=chosen, **{misspelt: 5})
            assert str(caught.value).startswith(f"{misspelt} is not an option ")
            assert str(caught.value).endswith(f"Did you mean {meant}?")

    def test_an_option_that_the_task_class_defines_is_accepted(self, app):
        @locked_task(app=app, base=WithOptions, key="k", ttl=5, keys=("a",))
        def task(): ...

        assert (task.ttl, task.keys) == (5, ("a",))

    def test_an_option_that_the_apps_task_class_defines_is_accepted(self):
        with Celery("own", fixups=[], set_as_current=False, task_cls=WithOptions) as own:
            task = locked_task(app=own, key="k", ttl=5)(nothing)
            assert task.ttl == 5

    def test_options_unlike_any_lock_option_are_accepted(self, app):
        task = locked_task(app=app, key="k", tenant="acme", importance=3)(nothing)
        assert (task.tenant, task.importance) == ("acme", 3)

    def test_every_option_of_celery_is_accepted(self, app):
        options = {name for name in vars(Task) if not name.startswith("_")}
        options |= {"name", "base", "bind", "shared", "lazy", "filter", "fun", "pydantic"}
        options |= {
            "pydantic_strict",
            "pydantic_context",
            "pydantic_dump_kwargs",
            "dont_autoretry_for",
        }
        options |= {
            "autoretry_for",
            "retry_kwargs",
            "retry_backoff",
            "retry_backoff_max",
            "retry_jitter",
        }
        refuse_misspelt(dict.fromkeys(options), app)
