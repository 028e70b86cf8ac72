from __future__ import annotations

from django.contrib import admin
from django.urls import path

from testsite import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("settle/<int:invoice_id>/", views.settle),
    path("asettle/<int:invoice_id>/", views.asettle),
    path("class/<int:invoice_id>/", views.Settle.as_view()),
    path("dispatch/<int:invoice_id>/", views.SettleAll.as_view()),
    path("adispatch/<int:invoice_id>/", views.SettleAllAsync.as_view()),
    path("broken/", views.broken),
]
