"""The test site under another theme of the admin, as a program: prints its address, and serves.

``python themed_site.py THEME FOLDER``; the theme is ``django``, ``unfold`` or ``grappelli``. The
address of Redis comes from ``SYNCGUARD_TEST_URL``. An account ``root`` exists, with the password
``root``. Ends when its standard input is closed.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from wsgiref.simple_server import WSGIRequestHandler, make_server

THEMES = {"django": [], "unfold": ["unfold"], "grappelli": ["grappelli"]}


class Quiet(WSGIRequestHandler):
    def log_message(self, *_args):
        pass


def configure(theme, folder):
    from django.conf import settings
    from testsite import settings as plain

    chosen = {name: getattr(plain, name) for name in dir(plain) if name.isupper()}
    chosen["INSTALLED_APPS"] = [*THEMES[theme], *plain.INSTALLED_APPS]
    # The themes have their own inline scripts and styles.
    chosen["MIDDLEWARE"] = [name for name in plain.MIDDLEWARE if "security_policy" not in name]
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(Path(folder) / "site.sqlite3")}
    chosen["DATABASES"] = {"default": database}
    settings.configure(**chosen, DEBUG=True)


def serve(theme, folder):
    configure(theme, folder)
    import django
    from django.contrib.staticfiles.handlers import StaticFilesHandler
    from django.core.management import call_command
    from django.core.wsgi import get_wsgi_application

    django.setup()
    call_command("migrate", verbosity=0)
    from django.contrib.auth.models import User

    User.objects.create_superuser("root", password="root")
    server = make_server(
        "127.0.0.1", 0, StaticFilesHandler(get_wsgi_application()), handler_class=Quiet
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"http://127.0.0.1:{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.shutdown()
    server.server_close()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "django"))
    os.environ.pop("DJANGO_SETTINGS_MODULE", None)
    serve(*sys.argv[1:])
