"""The people of `chatbackend.accounts.admin`, with what they have here: conversations, and answers under way."""

from typing import Any

from django.contrib import admin
from django.db.models import Count, Max, OuterRef, QuerySet, Subquery
from django.http import HttpRequest

from chatbackend.accounts.admin import PersonPage
from chatbackend.accounts.models import User
from conversations import leaving
from conversations.admin import links
from conversations.models import Conversation, Message, Preset
from slots.admin.reading import moment

_THEIRS = Conversation.objects.filter(owner=OuterRef("pk"), deleted_at=None).order_by().values("owner")
COLUMNS = {
    "conversations_count": Subquery(_THEIRS.annotate(n=Count("pk")).values("n")),
    "last_message_at": Subquery(_THEIRS.annotate(at=Max("updated_at")).values("at")),
}


class PersonWithConversationsPage(PersonPage):
    list_display = ["username", "role", "state", "joined", "last_sign_in", "last_message", "conversations"]
    facts = (*PersonPage.facts, "last_message", "conversations")

    def get_queryset(self, request: HttpRequest) -> QuerySet[User]:
        return super().get_queryset(request).annotate(**COLUMNS)

    @admin.display(description="last message", ordering="last_message_at")
    def last_message(self, person: Any) -> str:
        return moment(person.last_message_at)

    @admin.display(description="conversations", ordering="conversations_count")
    def conversations(self, person: Any) -> str:
        if not person.conversations_count:
            return "0"
        return links.filtered("conversations_conversation", f"{person.conversations_count:,}", owner=person.pk)

    def silence(self, person: User) -> None:
        leaving.silence(person.pk)

    def losses(self, people: list[User]) -> dict[str, int]:
        theirs = Conversation.objects.filter(owner__in=people, deleted_at=None)
        lost = {"conversation": theirs.count(), "message": Message.objects.filter(conversation__in=theirs).count()}
        presets = Preset.objects.filter(owner__in=people)
        offered = presets.filter(for_everybody=True).count()
        return lost | {"preset": presets.count() - offered, "offered preset": offered}

    def delete_model(self, request: HttpRequest, obj: User) -> None:
        leaving.remove(obj.pk)
        super().delete_model(request, obj)
