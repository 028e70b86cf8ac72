"""The shop that the pages talk of: a site with invoices, reports and feeds."""

from shop.celery import app as celery_app

__all__ = ["celery_app"]
