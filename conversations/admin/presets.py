"""Presets for everybody: an administrator makes one in the chat, as anybody does, and offers it to all here.

What other people keep for themselves is their own text, and not to be seen.
"""

from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import HttpRequest

from chatbackend.accounts.models import User
from conversations import placeholders
from conversations.admin import links
from conversations.models import Preset
from slots.admin.reading import Page, counting, moment, pill


class PresetPage(Page[Preset]):
    list_display = ("called", "person", "whose", "noted", "updated")
    list_select_related = ("owner",)
    list_display_links = ("called",)
    ordering = ("-for_everybody", "name")
    actions = ("offer", "withdraw")
    shown = ("called", "person", "whose", "model_wanted", "system_prompt", "warned", "set", "updated")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Preset]:
        """One's own, and those that everybody sees."""
        assert isinstance(request.user, User)
        return super().get_queryset(request).filter(Q(owner=request.user) | Q(for_everybody=True))

    def history_view(self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None) -> Any:
        """Who may not see any is refused, not told that this one is none; Django looks for it first."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        return super().history_view(request, object_id, extra_context)

    def has_offer_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "change_preset")

    @admin.display(description="name", ordering="name")
    def called(self, preset: Preset) -> str:
        return preset.name

    @admin.display(description="person", ordering="owner__username")
    def person(self, preset: Preset) -> str:
        return links.person(preset.owner_id, preset.owner.username)

    @admin.display(description="for", ordering="for_everybody")
    def whose(self, preset: Preset) -> str:
        return pill("good", "Everybody") if preset.for_everybody else pill("", "Its owner")

    @admin.display(description="system prompt")
    def noted(self, preset: Preset) -> str:
        return pill("warn", "See why") if placeholders.warnings(preset.system_prompt) else ""

    @admin.display(description="what it costs")
    def warned(self, preset: Preset) -> str:
        return " ".join(placeholders.warnings(preset.system_prompt)) or "nothing: each turn sends the same"

    @admin.display(description="model")
    def model_wanted(self, preset: Preset) -> str:
        return preset.model or "whichever is served"

    @admin.display(description="parameters")
    def set(self, preset: Preset) -> str:
        return ", ".join(f"{name}: {value}" for name, value in preset.params.items()) or "none"

    @admin.display(description="changed", ordering="updated_at")
    def updated(self, preset: Preset) -> str:
        return moment(preset.updated_at)

    @admin.action(description="Offer to everybody", permissions=["offer"])
    def offer(self, request: HttpRequest, chosen: QuerySet[Preset]) -> None:
        self._mark(request, chosen, True, "Offered to everybody.")

    @admin.action(description="Keep to its owner", permissions=["offer"])
    def withdraw(self, request: HttpRequest, chosen: QuerySet[Preset]) -> None:
        self._mark(request, chosen, False, "No longer offered to everybody.")

    def _mark(self, request: HttpRequest, chosen: QuerySet[Preset], offered: bool, words: str) -> None:
        others: list[Any] = list(chosen.exclude(for_everybody=offered))
        Preset.objects.filter(pk__in=[preset.pk for preset in others]).update(for_everybody=offered)
        for preset in others:
            self.log_change(request, preset, words)
        messages.success(request, f"{counting(len(others), 'preset')}. {words}")
