"""The admin's site: one login with the rest, its own order, and an overview of what is going on."""

import functools
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.admin import AdminSite
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, URLResolver, reverse
from django.utils import timezone

from conversations import presets, replays
from conversations.models import Generation, Waiting
from slots import parked
from slots.admin.servers import counted
from slots.admin.standing import standing
from slots.models import Server

NOT_STAFF = "The admin is for those who run this site. Ask one of them if you need something from it."
NOT_OURS = ("logout", "password_change", "password_change_done")  # /sign-out/ and /account/ do this
GROUPS = (
    ("Model servers", (("slots", "Server"), ("slots", "Slot"), ("slots", "Park"), ("slots", "PastLease"))),
    ("People", (("accounts", "User"), ("accounts", "Invite"))),
    ("Conversations", (("conversations", "Conversation"), ("conversations", "Preset"), ("admin", "LogEntry"))),
)
NAMES = {"PastLease": "Lease history", "LogEntry": "Record", "User": "People"}


class Site(AdminSite):
    """What Django's does, but nobody signs in here: whoever may not come in is sent to /sign-in/, or told so."""

    site_url = "/"
    enable_nav_sidebar = False
    index_title = "Overview"

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        title = f"{settings.SITE_NAME} · Admin"
        return {**super().each_context(request), "site_title": title, "site_header": title}

    def admin_view(self, view: Any, cacheable: bool = False) -> Any:
        guarded = super().admin_view(view, cacheable)

        @functools.wraps(guarded)
        def ours(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            if self.has_permission(request):
                return guarded(request, *args, **kwargs)
            return self._refuse(request, request.get_full_path())

        return ours

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        inside = reverse("admin:index")
        if self.has_permission(request):
            return HttpResponseRedirect(inside)
        return self._refuse(request, inside)

    def _refuse(self, request: HttpRequest, wanted: str) -> HttpResponse:
        if request.user.is_authenticated:
            raise PermissionDenied(NOT_STAFF)
        return redirect_to_login(wanted, reverse(settings.LOGIN_URL))

    def get_urls(self) -> list[Any]:
        urls: list[URLPattern | URLResolver] = super().get_urls()
        return [url for url in urls if getattr(url, "name", None) not in NOT_OURS]

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> list[Any]:
        """By what one looks for, in the order of the overview; an app's own page stays as Django makes it."""
        if app_label is not None:
            return super().get_app_list(request, app_label)
        found = {
            (app["app_label"], model["object_name"]): model
            for app in super().get_app_list(request)
            for model in app["models"]
        }
        groups = []
        for name, members in GROUPS:
            models = [found[member] for member in members if member in found]
            for model in models:
                model["name"] = NAMES.get(model["object_name"], model["name"])
            if models:
                groups.append({"name": name, "app_label": "", "models": models})
        return groups

    def index(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        return super().index(request, {**overview(request), **(extra_context or {})})


def overview(request: HttpRequest) -> dict[str, Any]:
    """What is going on now, as far as this member of staff may see it."""
    if not request.user.has_perm("slots.view_server"):
        return {}
    rows = counted(Server.objects.exclude(state=Server.State.RETIRED)).order_by("url")
    servers = [{"row": row, "standing": standing(row)} for row in rows]
    waiting, day = Waiting.objects, timezone.now() - timedelta(days=1)
    return {
        "servers": servers,
        "totals": {word: sum(getattr(row, word) for row in rows) for word in ("free", "busy", "idle")},
        "waiting": waiting.count(),
        "people_waiting": waiting.values("conversation__owner").distinct().count(),
        "overwritten": parked.due(),
        "replays": replays.since(day),
        "changing": replays.changing(day),
        "presets": presets.offered_and_warned_of() if request.user.has_perm("conversations.change_preset") else [],
        "answering": Generation.objects.filter(status=Generation.Status.RUNNING).count(),
    }
