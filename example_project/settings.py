"""The settings of the example. What SyncGuard needs is ``SYNCGUARD`` and one installed app.

``SYNCGUARD_URL`` and ``CELERY_BROKER_URL`` name the servers. ``python -m example_project.demo``
starts both, and sets the rest of the environment that is read here.
"""

from __future__ import annotations

import os
from pathlib import Path

from django.core.management.utils import get_random_secret_key

from example_project.lock_store import options_of

HERE = Path(__file__).resolve().parent

SECRET_KEY = os.environ.get("EXAMPLE_SECRET_KEY") or get_random_secret_key()
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "example_project.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"
USE_TZ = True

# -- SyncGuard --------------------------------------------------------------------------------

LOCATION = os.environ.get("SYNCGUARD_URL", "redis://127.0.0.1:6379/0")
SYNCGUARD = {
    "default": {
        "LOCATION": LOCATION,
        "KEY_PREFIX": "example",
        "OPTIONS": options_of(LOCATION),
        # For short fences in the pictures. A real site omits this: then a Redis that lost its
        # data cannot give out a fence for the second time.
        "FENCE_FLOOR": None,
    }
}

# -- Celery -----------------------------------------------------------------------------------

CELERY_BROKER_URL = os.environ.get("CELERY_BROKER_URL", "redis://127.0.0.1:6379/1")
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_DEFAULT_QUEUE = os.environ.get("EXAMPLE_QUEUE", "example")
CELERY_TASK_IGNORE_RESULT = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
# How long Celery waits for the result of a process that was killed, before it runs the task again.
CELERY_WORKER_LOST_WAIT = 1.0

# -- Django -----------------------------------------------------------------------------------

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("EXAMPLE_DATABASE", str(HERE / "var" / "example.sqlite3")),
        # Several processes write: writers wait for each other, readers do not wait.
        "OPTIONS": {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;",
        },
    }
}

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "syncguard_django",
    "example_project.billing",
    "example_project.story",
]

MIDDLEWARE = [
    "example_project.middleware.content_security_policy",
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
