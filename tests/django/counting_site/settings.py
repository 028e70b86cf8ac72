"""Settings of the counting site. The test sets its database, and where its locks are."""

from __future__ import annotations

import json
import os

SECRET_KEY = "only-for-tests"
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "counting_site.urls"
ASGI_APPLICATION = "counting_site.servers.asgi"
USE_TZ = True
INSTALLED_APPS = ["syncguard_django"]
MIDDLEWARE: list[str] = []
DATABASES = {"default": json.loads(os.environ["COUNTING_DATABASE"])}
SYNCGUARD = {
    "default": {
        **json.loads(os.environ["COUNTING_LOCKS"]),
        "KEY_PREFIX": "counting",
        # Every request waits until it gets the lock, for any number of waiters.
        "ACQUISITION": {"timeout_ms": 100_000, "max_retries": 100},
    }
}
REST_FRAMEWORK = {"DEFAULT_AUTHENTICATION_CLASSES": [], "UNAUTHENTICATED_USER": None}
LOGGING = {"version": 1, "disable_existing_loggers": False}

if DATABASES["default"]["ENGINE"].endswith("mysql"):
    import pymysql

    pymysql.install_as_MySQLdb()
