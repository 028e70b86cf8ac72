"""``SENTINELS`` + ``MASTER_NAME``, and ``CLUSTER``: what is checked, and real servers."""

from __future__ import annotations

import io
import json

import pytest
from celery import Celery
from cluster_servers import ClusterServers
from django.core.checks import run_checks
from django.core.management import call_command
from sentinel_servers import NAME, NEVER_DOWN, SentinelServers
from test_settings import read_default, refusal_of
from testsite.visits import page

from syncguard.redis import RedisBackend
from syncguard_celery import current_fence, locked_task
from syncguard_django import lock, locked, locks

HOSTS = [("10.0.0.1", 26379), "10.0.0.2", "10.0.0.3:26380", ("fe80::1", 26379)]


# -- what is read ---------------------------------------------------------------------------------


def test_sentinels_and_the_name_of_the_master_are_an_address():
    alias = read_default(SENTINELS=HOSTS, MASTER_NAME="orders", OPTIONS={"db": 2})
    assert alias.backend_class is RedisBackend
    hosts = "10.0.0.1:26379,10.0.0.2:26379,10.0.0.3:26380,[fe80::1]:26379"
    assert alias.location.url == f"redis+sentinel://{hosts}/orders"
    assert alias.options == {"db": 2}


@pytest.mark.parametrize(
    "location",
    [
        "redis://:pw@h1:7000,h2:7001",
        "redis+cluster://:pw@h1:7000,h2:7001",
        "redis+cluster://:pw@h1:7000,h2:7001/0",
    ],
)
def test_the_nodes_of_a_cluster_are_an_address(location):
    alias = read_default(LOCATION=location, CLUSTER=True)
    assert alias.location.url == "redis+cluster://h1:7000,h2:7001"
    assert alias.options == {"db": 0, "password": "pw"}
    assert alias.location.store == read_default(LOCATION=alias.location.url).location.store


def test_a_url_alone_is_enough():
    alias = read_default(LOCATION="rediss+sentinel://:pw@h1,h2/orders/2")
    assert alias.location.url == "rediss+sentinel://h1:26379,h2:26379/orders"
    assert alias.options == {"db": 2, "password": "pw"}
    assert read_default(LOCATION="redis+cluster://h1").location.url == "redis+cluster://h1:6379"
    assert read_default(LOCATION="redis://h1", CLUSTER=False).location.url == "redis://h1:6379"


SENTINELS_ARE = '["SENTINELS"] must be a list of addresses: pairs such as ("10.0.0.1", 26379)'
MASTER_IS = 'must be the name of the master: the word after "sentinel monitor"'
ONE_DATABASE = "must not have a database number: a Redis cluster has only database 0"


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"SENTINELS": HOSTS}, f'["MASTER_NAME"] is missing beside SENTINELS: it {MASTER_IS}'),
        ({"SENTINELS": HOSTS, "MASTER_NAME": ""}, f'["MASTER_NAME"] {MASTER_IS}'),
        ({"SENTINELS": HOSTS, "MASTER_NAME": "hunter2/0"}, f'["MASTER_NAME"] {MASTER_IS}'),
        ({"SENTINELS": "hunter2:1", "MASTER_NAME": "m"}, SENTINELS_ARE),
        ({"SENTINELS": [], "MASTER_NAME": "m"}, SENTINELS_ARE),
        ({"SENTINELS": [("hunter2", "1")], "MASTER_NAME": "m"}, SENTINELS_ARE),
        ({"SENTINELS": [("hunter2", 0)], "MASTER_NAME": "m"}, SENTINELS_ARE),
        ({"SENTINELS": [("hunter2", True)], "MASTER_NAME": "m"}, SENTINELS_ARE),
        ({"SENTINELS": [("a", 1, "hunter2")], "MASTER_NAME": "m"}, SENTINELS_ARE),
        ({"SENTINELS": ["x:hunter2@h"], "MASTER_NAME": "m"}, SENTINELS_ARE),
        (
            {"SENTINELS": HOSTS, "MASTER_NAME": "m", "LOCATION": "redis://:hunter2@h"},
            '["SENTINELS"] already names the servers: remove LOCATION',
        ),
        (
            {"SENTINELS": HOSTS, "MASTER_NAME": "m", "CACHE": "default"},
            '["SENTINELS"] already names the servers: remove CACHE',
        ),
        (
            {"SENTINELS": HOSTS, "MASTER_NAME": "m", "CLUSTER": True},
            '["CLUSTER"] must not be True beside SENTINELS: choose one',
        ),
        ({"MASTER_NAME": "m"}, '["MASTER_NAME"] needs SENTINELS beside it'),
        (
            {"MASTER_NAME": "m", "LOCATION": "redis+sentinel://:hunter2@h/m"},
            '["MASTER_NAME"] must not be given beside such a LOCATION, which contains the name',
        ),
        ({"CLUSTER": True}, '["LOCATION"] must be a URL with some nodes of the cluster'),
        ({"CLUSTER": True, "CACHE": "default"}, '["CLUSTER"] cannot be used with CACHE'),
        ({"CLUSTER": "yes", "LOCATION": "redis://"}, '["CLUSTER"] must be True or False'),
        (
            {"CLUSTER": True, "LOCATION": "unix:///hunter2"},
            '["LOCATION"] must be a URL with some nodes of the cluster',
        ),
        (
            {"CLUSTER": True, "LOCATION": "redis+sentinel://:hunter2@h/m"},
            '["LOCATION"] must be a URL with some nodes of the cluster',
        ),
        ({"CLUSTER": True, "LOCATION": "redis://h/1"}, f'["LOCATION"] {ONE_DATABASE}'),
        (
            {"CLUSTER": True, "LOCATION": "redis://h", "OPTIONS": {"db": 1}},
            f'["OPTIONS"] {ONE_DATABASE}',
        ),
        (
            {"CLUSTER": False, "LOCATION": "redis+cluster://h"},
            '["CLUSTER"] is False, but LOCATION names a cluster: remove it',
        ),
        (
            {"LOCATION": "redis+sentinel://:hunter2@h"},
            '["LOCATION"] must be a URL such as redis+sentinel://',
        ),
        (
            {"LOCATION": "redis+cluster://h:hunter2"},
            '["LOCATION"] must be a URL with some nodes of the cluster',
        ),
    ],
)
def test_a_wrong_combination_is_refused_with_what_was_expected(entry, expected):
    cache = {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": "redis://"}
    text = refusal_of({"default": cache}, **entry)
    assert text.startswith(f'SYNCGUARD["default"]{expected}')
    assert "hunter2" not in text


def test_a_backend_without_these_settings_refuses_them():
    text = refusal_of(LOCATION="sqlite:///locks.db", CLUSTER=True)
    assert text.startswith('SYNCGUARD["default"]["CLUSTER"] is not a setting of SyncGuard')


def test_the_checks_report_them_without_connecting(settings):
    settings.SYNCGUARD = {
        "one": {"SENTINELS": [("s.invalid", 26379)], "KEY_PREFIX": "a"},
        "two": {"SENTINELS": ["s.invalid"], "MASTER_NAME": "m", "OPTIONS": {"sentinel_kwargs": 7}},
        "three": {"LOCATION": "redis://c.invalid:7000", "CLUSTER": True, "KEY_PREFIX": "b"},
        "four": {"LOCATION": "redis+cluster://c.invalid:7000", "KEY_PREFIX": "b"},
    }
    found = run_checks(include_deployment_checks=True)
    ours = sorted({each.id for each in found if (each.id or "").startswith("syncguard.")})
    assert ours == [
        "syncguard.E003",  # one: no MASTER_NAME; two: sentinel_kwargs
        "syncguard.W001",  # three and four are the same locks
        "syncguard.W010",  # no TLS
        "syncguard.W011",  # no password
        "syncguard.W012",  # two has the default prefix
    ]
    errors = sorted(str(each.msg) for each in found if each.id == "syncguard.E003")
    assert errors[0].startswith('SYNCGUARD["one"]["MASTER_NAME"] is missing')
    assert "sentinel_kwargs must be a dictionary" in errors[1]


def test_a_group_with_tls_and_a_password_has_no_findings():
    for entry in (
        {"LOCATION": "rediss+cluster://:pw@h"},
        {"SENTINELS": ["h"], "MASTER_NAME": "m", "OPTIONS": {"ssl": True, "password": "pw"}},
    ):
        assert not read_default(**entry).location.findings


def test_neither_page_nor_repr_shows_the_password_of_the_sentinels():
    alias = read_default(
        SENTINELS=HOSTS,
        MASTER_NAME="m",
        OPTIONS={"password": "hunter2", "sentinel_kwargs": {"password": "hunter2"}},
    )
    assert "hunter2" not in f"{alias!r} {dict(alias.options)!r}"


# -- on real servers ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sentinel_entry():
    with SentinelServers(down_after_ms=NEVER_DOWN) as servers:
        yield {"SENTINELS": [servers.address], "MASTER_NAME": NAME}, servers.address[1]


@pytest.fixture(scope="module")
def cluster_entry():
    with ClusterServers() as servers:
        yield {"LOCATION": f"redis://127.0.0.1:{servers.port}", "CLUSTER": True}, servers.port


@pytest.fixture(params=["sentinel_entry", "cluster_entry"])
def group(request, settings):
    """The alias ``default`` with default settings. Returns the URL of the same servers."""
    entry, port = request.getfixturevalue(request.param)
    settings.SYNCGUARD = {"default": entry}
    if "CLUSTER" in entry:
        return f"redis+cluster://127.0.0.1:{port}"
    return f"redis+sentinel://127.0.0.1:{port}/{NAME}/0"


@pytest.mark.django_db
@pytest.mark.usefixtures("group")
def test_a_lock_is_on_the_admin_page_and_in_the_status(viewer):
    with lock("invoice:42", holder="worker-7"):
        assert not locks["default"].acquire("invoice:42").ok
        assert "worker-7" in page(viewer)
        printed = io.StringIO()
        call_command("syncguard_status", "--format", "json", stdout=printed)
        assert "worker-7" in printed.getvalue()
    assert "worker-7" not in page(viewer)


@pytest.mark.usefixtures("group")
def test_the_state_of_the_servers_is_reported():
    printed = io.StringIO()
    with lock("k"):
        call_command("syncguard_status", "--check", "--format", "json", stdout=printed)
    (alias,) = json.loads(printed.getvalue())
    assert alias["role"] == "primary"
    assert alias["liveLocks"] == 1
    assert alias["findings"] == []


@pytest.mark.usefixtures("group")
def test_a_locked_function_and_a_locked_task_use_the_alias():
    app = Celery("groups", broker="memory://", set_as_current=False)
    app.conf.task_always_eager = True

    @locked(key="item:{x}")
    def in_function(x):  # noqa: ARG001 - for the key
        return [info.fence for info in locks["default"].live_locks()]

    @locked_task(app=app, name="in_task", key="item:{x}")
    def in_task(x):  # noqa: ARG001 - for the key
        return current_fence(), [info.fence for info in locks["default"].live_locks()]

    assert len(in_function(7)) == 1
    fence, live = in_task.delay(7).get()
    assert live == [fence]


def test_a_task_takes_the_url(group):
    app = Celery("urls", broker="memory://", set_as_current=False)
    app.conf.task_always_eager = True
    app.conf.syncguard_backend = group

    @locked_task(app=app, name="of_url", key="url:{x}")
    def of_url(x):  # noqa: ARG001 - for the key
        return current_fence()

    fence = of_url.delay(1).get()
    with lock("url:1") as held:
        assert held.fence > fence
