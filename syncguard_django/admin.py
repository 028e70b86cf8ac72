"""The admin page: lists the live locks, and releases one whose holder no longer runs.

Viewing needs the permission ``view_lock``, releasing also ``release_lock``. Nothing here shows or
stores a lock id, nor a raw key unless ``SHOW_KEYS`` and the permission ``view_lock_key`` allow it.
A key to search for is sent by POST and hashed before the redirect.
"""

# ruff: noqa: ARG002 - the signatures are Django's

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import connections, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables

from syncguard_django import force_release, live_locks
from syncguard_django.admin_cells import (
    cell,
    running_duration,
    shown_fence,
    shown_hash,
    shown_holder,
)
from syncguard_django.admin_changelist import ALIAS_PARAMETER, LockChangeList
from syncguard_django.admin_find_by_key import FindByKeyForm
from syncguard_django.configured_backends import locks
from syncguard_django.live_locks import Failure, Holder
from syncguard_django.models import Lock
from syncguard_django.settings import configuration

if TYPE_CHECKING:
    _LockModelAdmin = admin.ModelAdmin[Lock]
else:
    _LockModelAdmin = admin.ModelAdmin

COLUMNS: Final = ("key", "raw_key", "alias", "holder_label", "expires_in", "held_for", "number")
HOLDER_PARAMETERS: Final = ("using", "key_hash", "fence", "lock_id_hash", "acquired_at_ms")
"""What identifies one holder: the alias, the three values that are compared, and the time when it
acquired the lock, which helps a backend to find it among many."""

_CHANGE_LIST: Final = "syncguard_django_lock_changelist"
_FIND: Final = "syncguard_django_lock_find"
_RELEASE: Final = "syncguard_django_lock_release"
_FILTERS: Final = "_changelist_filters"
"""Django's parameter with the query of the change list that the page was opened from."""


class AliasFilter(admin.SimpleListFilter):
    title = gettext_lazy("alias")
    parameter_name = ALIAS_PARAMETER

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(alias, alias) for alias in locks]

    def has_output(self) -> bool:
        return len(self.lookup_choices) > 1

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return queryset  # the change list reads the parameter itself


@admin.register(Lock)
class LockAdmin(_LockModelAdmin):
    list_display = COLUMNS
    list_display_links = None
    list_filter = (AliasFilter,)
    list_per_page = 100
    search_fields = ("key_hash", "lock_id_hash", "holder")
    search_help_text = gettext_lazy(
        # django-unfold shows only the first forty letters: they contain the warning.
        "Search a hash or a holder, never a key: the key would be in the address. Use “Find by"
        " key” for a key. The beginning of a hash is enough."
    )
    ordering = ("expires_at_ms",)
    show_facets = admin.ShowFacets.NEVER
    actions = None
    # Must be True: otherwise Django's template adds an inline style, which a strict
    # Content-Security-Policy forbids.
    actions_on_top = True

    class Media:
        css = {"all": ("syncguard_django/locks.css",)}  # noqa: RUF012
        js = ("syncguard_django/locks.js",)

    # -- permissions --------------------------------------------------------------------------

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Lock | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Lock | None = None) -> bool:
        return False

    def has_release_permission(self, request: HttpRequest) -> bool:
        """Releasing needs its own permission, and the permission to view."""
        user = request.user
        return self.has_view_permission(request) and user.has_perm("syncguard_django.release_lock")

    def has_view_key_permission(self, request: HttpRequest) -> bool:
        """False unless an alias has ``SHOW_KEYS``."""
        shown = any(alias.show_keys for alias in configuration().aliases.values())
        return shown and request.user.has_perm("syncguard_django.view_lock_key")

    # -- the list -----------------------------------------------------------------------------

    def get_urls(self) -> list[URLPattern]:
        # Without the inherited URLs: locks cannot be added, changed or deleted here.
        view = self.admin_site.admin_view
        release = view(self.release_view)
        for database in connections:
            # The audit must be committed before the lock is released, also with ATOMIC_REQUESTS.
            release = transaction.non_atomic_requests(database)(release)
        return [
            path("", view(self.changelist_view), name=_CHANGE_LIST),
            path("find/", view(self.find_view), name=_FIND),
            path("release/", release, name=_RELEASE),
        ]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[LockChangeList]:
        return LockChangeList

    def get_list_display(self, request: HttpRequest) -> tuple[str, ...]:
        columns = dict.fromkeys((*COLUMNS, "release_link"))
        if not self.has_view_key_permission(request):
            del columns["raw_key"]
        if len(tuple(locks)) == 1:
            del columns["alias"]
        if not self.has_release_permission(request):
            del columns["release_link"]
        return tuple(columns)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        initial = {"using": request.GET.get(ALIAS_PARAMETER)}
        context = {"title": _("Locks"), "find_form": FindByKeyForm(initial=initial)}
        return super().changelist_view(request, {**context, **(extra_context or {})})

    @admin.display(description=gettext_lazy("key hash"), ordering="key_hash")
    def key(self, row: Lock) -> SafeString:
        return cell(_("key hash"), shown_hash(row.key_hash))

    @admin.display(description=gettext_lazy("key"))
    def raw_key(self, row: Lock) -> SafeString:
        shown = "-" if row.raw_key is None else format_html("<code>{}</code>", row.raw_key)
        return cell(_("key"), shown)

    @admin.display(description=gettext_lazy("alias"), ordering="using")
    def alias(self, row: Lock) -> SafeString:
        return cell(_("alias"), row.using)

    @admin.display(description=gettext_lazy("holder"), ordering="holder")
    def holder_label(self, row: Lock) -> SafeString:
        return cell(_("holder"), shown_holder(row.holder or "-"))

    @admin.display(description=gettext_lazy("expires in"), ordering="expires_at_ms")
    def expires_in(self, row: Lock) -> SafeString:
        return cell(_("expires in"), running_duration(row.remaining_ms, "remaining"))

    @admin.display(description=gettext_lazy("held for"), ordering="-acquired_at_ms")
    def held_for(self, row: Lock) -> SafeString:
        return cell(_("held for"), running_duration(row.held_ms, "held"))

    @admin.display(description=gettext_lazy("fence"), ordering="fence")
    def number(self, row: Lock) -> SafeString:
        return cell(_("fence"), shown_fence(row.fence))

    @admin.display(description=gettext_lazy("release"))
    def release_link(self, row: Lock) -> SafeString:
        holder = urlencode({name: getattr(row, name) for name in HOLDER_PARAMETERS})
        return format_html(
            '<a class="syncguard-release" href="{}?{}">{}</a>',
            reverse(f"{self.admin_site.name}:{_RELEASE}"),
            "&".join(filter(None, (holder, row.preserved_filters))),
            _("Release…"),
        )

    # -- find by key --------------------------------------------------------------------------

    @method_decorator(sensitive_post_parameters("key"))
    @method_decorator(sensitive_variables("form", "key"))
    def find_view(self, request: HttpRequest) -> HttpResponse:
        """Hash a raw key and redirect to its hash: no key in an address, a log or a page."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not self.has_view_permission(request):
            raise PermissionDenied
        form = FindByKeyForm(request.POST)
        if not form.is_valid():
            messages.error(request, _("Choose an alias and type a key."))
            return redirect(self._list_url(request))
        using, key = form.cleaned_data["using"], form.cleaned_data["key"]
        result = live_locks.attempt(using, lambda: live_locks.lookup(using, key=key))
        if isinstance(result, Failure):
            _show_failure(request, result)
            return redirect(self._list_url(request))
        key_hash = live_locks.hash_of(using, key)
        if result is None:
            text = _("Nobody holds the lock of that key. Its hash is %(hash)s.")
            messages.info(request, text % {"hash": key_hash})
        else:
            text = _("The lock of that key is held: fence %(fence)s, holder %(holder)s.")
            holder = result.lock.info.holder or _("not named")
            messages.info(request, text % {"fence": result.lock.short_fence, "holder": holder})
        url = reverse(f"{self.admin_site.name}:{_CHANGE_LIST}")
        return redirect(f"{url}?{urlencode({'using': using, 'q': key_hash})}")

    # -- force-release ------------------------------------------------------------------------

    def release_view(self, request: HttpRequest) -> HttpResponse:
        """GET shows a confirmation. POST releases the lock if the shown holder still holds it."""
        if not self.has_release_permission(request):
            raise PermissionDenied
        if request.method not in ("GET", "HEAD", "POST"):
            return HttpResponseNotAllowed(["GET", "POST"])
        values = request.POST if request.method == "POST" else request.GET
        holder_values = {name: values.get(name, "") for name in HOLDER_PARAMETERS}
        is_complete = all(holder_values.values()) and holder_values["acquired_at_ms"].isdecimal()
        using = holder_values["using"]
        if not is_complete or using not in locks:
            raise Http404
        result = live_locks.attempt(using, lambda: live_locks.find(**holder_values))
        if isinstance(result, Failure):
            _show_failure(request, result)
        elif result is None:
            _show_no_longer_held(request)
        elif request.method == "POST":
            self._release(request, result)
        else:
            return self._confirmation(request, result, holder_values)
        return redirect(self._list_url(request))

    def _confirmation(
        self, request: HttpRequest, holder: Holder, holder_values: dict[str, str]
    ) -> HttpResponse:
        request.current_app = self.admin_site.name
        lock = holder.lock
        filters = self.get_preserved_filters(request)
        action = reverse(f"{self.admin_site.name}:{_RELEASE}")
        context = {
            **self.admin_site.each_context(request),
            "title": _("Force-release a lock?"),
            "opts": self.opts,
            "media": self.media,
            "lock": lock,
            "raw_key": lock.key if self.has_view_key_permission(request) else None,
            "fence": shown_fence(lock.info.fence),
            "holder": shown_holder(lock.info.holder or "-"),
            "held_for": running_duration(lock.held_ms, "held"),
            "expires_in": running_duration(lock.remaining_ms, "remaining"),
            "holder_fields": holder_values,
            "release_url": f"{action}?{filters}" if filters else action,
            "list_url": self._list_url(request),
        }
        template = "admin/syncguard_django/lock/release_confirmation.html"
        return TemplateResponse(request, template, context)

    def _release(self, request: HttpRequest, holder: Holder) -> None:
        user = request.user
        outcome = force_release.release(holder, force_release.Actor(user.get_username(), user.pk))
        if isinstance(outcome, Failure):
            _show_failure(request, outcome)
        elif not outcome:
            _show_no_longer_held(request)
        else:
            text = _("Released the lock %(hash)s (fence %(fence)s).")
            lock = holder.lock
            facts = {"hash": lock.info.key_hash, "fence": lock.short_fence}
            messages.success(request, text % facts)

    def _list_url(self, request: HttpRequest) -> str:
        """The change list, with the filters that it had when this page was opened from it."""
        url = reverse(f"{self.admin_site.name}:{_CHANGE_LIST}")
        filters = request.GET.get(_FILTERS)
        return f"{url}?{filters}" if filters else url


def _show_failure(request: HttpRequest, failure: Failure) -> None:
    messages.error(request, _("Alias %(failure)s") % {"failure": failure})


def _show_no_longer_held(request: HttpRequest) -> None:
    messages.warning(
        request,
        _(
            "Nothing was released: the holder that was shown no longer holds the lock."
            " It released the lock, the lock expired, or another holder has the lock now."
        ),
    )
