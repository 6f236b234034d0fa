"""Invitations: who made them, who came by them. The codes themselves are stored nowhere."""

from typing import Any

from django.contrib import admin, messages
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone

from chatbackend.accounts.admin import links
from chatbackend.accounts.models import Invite
from slots.admin.reading import Page, moment, pill


class ByState(admin.SimpleListFilter):
    title = parameter_name = "state"
    states = {
        "open": Q(used_at=None, expires_at__gt=Now()),
        "used": Q(used_at__isnull=False),
        "expired": Q(used_at=None, expires_at__lte=Now()),
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(state, state.capitalize()) for state in self.states]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Invite]) -> QuerySet[Invite]:
        return queryset.filter(self.states.get(self.value() or "", Q()))


class InvitationPage(Page[Invite]):
    list_display = ("number", "state", "by", "created", "expires", "used", "joined")
    list_filter = (ByState,)
    ordering = ("-pk",)
    actions = ("revoke",)
    shown = ("number", "state", "by", "created", "expires", "used", "joined")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Invite]:
        return super().get_queryset(request).defer("digest").select_related("created_by", "used_by")

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "change_invite")

    @admin.display(description="invitation", ordering="pk")
    def number(self, invite: Invite) -> str:
        return f"No. {invite.pk}"

    @admin.display(description="state")
    def state(self, invite: Invite) -> str:
        if invite.used_at:
            return pill("", "Used")
        return pill("good", "Open") if invite.expires_at > timezone.now() else pill("warn", "Expired")

    @admin.display(description="by", ordering="created_by__username")
    def by(self, invite: Invite) -> str:
        return invite.created_by.username if invite.created_by else "the command line, or somebody who left"

    @admin.display(description="made", ordering="created_at")
    def created(self, invite: Invite) -> str:
        return moment(invite.created_at)

    @admin.display(description="expires", ordering="expires_at")
    def expires(self, invite: Invite) -> str:
        return moment(invite.expires_at)

    @admin.display(description="used", ordering="used_at")
    def used(self, invite: Invite) -> str:
        return moment(invite.used_at)

    @admin.display(description="who joined", ordering="used_by__username")
    def joined(self, invite: Invite) -> str:
        if invite.used_by:
            return invite.used_by.username
        return "somebody who left" if invite.used_at else "–"

    @admin.action(description="Revoke: nobody can use it any more", permissions=["revoke"])
    def revoke(self, request: HttpRequest, chosen: QuerySet[Invite]) -> None:
        for invite in chosen:
            unused = Invite.objects.filter(pk=invite.pk, used_at=None, expires_at__gt=Now())
            if unused.update(expires_at=Now()):
                self.log_change(request, invite, "Revoked.")
                messages.success(request, f"Invitation {invite.pk} lets nobody in any more.")
            else:
                messages.info(request, f"Invitation {invite.pk} was used or had expired before.")

    def get_urls(self) -> list[URLPattern]:
        new = path("new/", self.admin_site.admin_view(self.new_view), name="accounts_invite_new")
        return [new, *super().get_urls()]

    def new_view(self, request: HttpRequest) -> HttpResponse:
        return links.for_newcomer(request, self.admin_site, reverse("admin:accounts_invite_changelist"))

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return super().changelist_view(request, {**(extra_context or {}), "orders": invite_button(request)})


def invite_button(request: HttpRequest) -> list[dict[str, str]]:
    """On the lists of people and of invitations."""
    if not request.user.has_perm("accounts.add_invite"):
        return []
    return [{"address": reverse("admin:accounts_invite_new"), "label": "Invite"}]
