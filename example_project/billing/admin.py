"""The admin of the business. The page of locks is SyncGuard's own, and needs nothing here."""

from __future__ import annotations

from django.contrib import admin

from example_project.billing.models import FeedImport, Invoice, Payment, Report


@admin.register(Invoice)
class InvoiceAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ("number", "customer", "amount", "settled_at", "confirmed_at", "fence")


@admin.register(Payment)
class PaymentAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ("invoice", "fence", "booked_at")


admin.site.register(FeedImport)
admin.site.register(Report)
