"""A small Django and Celery site that uses SyncGuard. Start it with ``tox run -e demo``."""

from example_project.celery import app as celery_app

__all__ = ["celery_app"]
