"""A Django project in a temporary folder, made of the files that a page shows.

What every project has before anybody adds SyncGuard (settings, manage.py, a Celery app) is written
here; the page brings the rest. Commands run as subprocesses, as a reader would run them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from pages import Block

ADDRESS = "redis://127.0.0.1:6379/"
"""Where the pages say that Redis is, up to the number of the database."""

SETTINGS = """\
SECRET_KEY = "only-for-tests"
INSTALLED_APPS = ["django.contrib.contenttypes", "shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.sqlite3",
                         "OPTIONS": {"timeout": 30}}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
CELERY_BROKER_URL = "redis://127.0.0.1:6379/0"
CELERY_RESULT_BACKEND = "redis://127.0.0.1:6379/0"
"""

MANAGE = """\
import os, sys
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
"""

CELERY = """\
import os
from celery import Celery
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
"""


class Project:
    """The folder, and the Python that its commands run with."""

    def __init__(self, folder: Path, redis_url: str, python: str = sys.executable) -> None:
        self.folder = folder
        self.redis_url = redis_url
        self.python = python
        # Programs of the same environment (celery, django-admin) first, and nothing that would
        # let it see this checkout.
        programs = f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"
        unwanted = ("PYTHONPATH", "DJANGO_SETTINGS_MODULE")
        kept = {name: value for name, value in os.environ.items() if name not in unwanted}
        self.environment = {**kept, "PATH": programs, "PYTHONWARNINGS": "default"}

    def start(self) -> None:
        """Write what a project has without us."""
        self.write("manage.py", MANAGE)
        self.write("shop/__init__.py", "from shop.celery import app as celery_app\n")
        self.write("shop/celery.py", CELERY)
        self.write("shop/settings.py", SETTINGS)

    def add(self, files: Iterable[Block]) -> None:
        """Write the files that a page shows."""
        for block in files:
            _, path, *how = block.words
            self.write(path, block.text, append=how == ["append"])

    def write(self, path: str, text: str, *, append: bool = False) -> None:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        before = target.read_text() + "\n" if append else ""
        target.write_text(before + self.located(text))

    def located(self, text: str) -> str:
        """The text with the address of the Redis of this test."""
        return text.replace(ADDRESS, self.redis_url.removesuffix("0"))

    def run(self, *command: str, timeout: float = 900) -> str:
        """Run a command and return what it printed; fail, with that, if it fails."""
        run = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )
        assert run.returncode == 0, f"{command} ended with {run.returncode}:\n{run.stdout}"
        return run.stdout

    def shell(self, text: str) -> str:
        """Run the lines of a shell block; a ``$ `` in front is the prompt."""
        script = "\n".join(line.removeprefix("$ ") for line in self.located(text).splitlines())
        return self.run("bash", "-euc", script)

    def python_code(self, text: str) -> str:
        return self.run(self.python, "-c", text)


class Worker:
    """A Celery worker of a project, for a ``with`` block."""

    def __init__(self, project: Project, command: Iterable[str]) -> None:
        self._project = project
        self._command = list(command)
        self._log = project.folder / "worker.log"

    def __enter__(self) -> Worker:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._project.folder,
                env=self._project.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + 600
        while " ready." not in self._log.read_text(errors="replace"):
            ended = self._process.poll() is not None or time.monotonic() > deadline
            assert not ended, self._log.read_text(errors="replace")
            time.sleep(0.05)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


QUICK_START = """\
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
import django; django.setup()
import shop.celery
from shop.models import Invoice
from shop.tasks import settle
from syncguard_django.fencing import StaleFence

invoice = Invoice.objects.create()
results = [settle.delay(invoice.pk) for _ in range(20)]
outcomes = [result.get(timeout=600) for result in results]
assert outcomes.count("settled") == 1, outcomes
assert outcomes.count("was settled before") == 19, outcomes
invoice.refresh_from_db()
assert invoice.settled and invoice.fence > "000000000000000", invoice.fence
try:
    Invoice.objects.get().save_fenced("000000000000000")
except StaleFence:
    print("once, and fenced")
"""


def quick_start(project: Project, files: Iterable[Block]) -> str:
    """Build the quick start, run it with a real worker, and return what came of it."""
    project.start()
    project.add(files)
    project.run(project.python, "manage.py", "makemigrations", "shop")
    project.run(project.python, "manage.py", "migrate")
    worker = [*("-m", "celery", "-A", "shop", "worker"), *("-c", "2", "-l", "INFO")]
    with Worker(project, [project.python, *worker]):
        outcome = project.python_code(QUICK_START)
    return outcome + project.run(project.python, "manage.py", "syncguard_status")
