"""The landing page, what it calls, and the admin with its page of locks."""

from __future__ import annotations

from django.conf import settings
from django.contrib import admin
from django.urls import path
from django.views.generic import RedirectView

from example_project.story import views

urlpatterns = [
    path("", views.landing, name="landing"),
    path("state", views.state, name="state"),
    path("scenes/<slug:kind>", views.play, name="play"),
    path("admin/", admin.site.urls),
    path("favicon.ico", RedirectView.as_view(url=f"{settings.STATIC_URL}story/icon.svg")),
]
