"""Conversations: whose, when, how much, in which state. Their words only for those who may, and on the record."""

import contextlib
import logging
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Count, OuterRef, QuerySet, Subquery
from django.db.models.functions import Length
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse

from conversations import actions, errors, history
from conversations.admin import links
from conversations.models import Conversation, Generation, Message
from slots.admin.reading import Page, moment, pill

logger = logging.getLogger(__name__)

MOST_SHOWN = 500  # messages on one page
READ = "Read the text."

_LIVE = Generation.objects.filter(conversation=OuterRef("pk"), status__in=Generation.LIVE)
_COUNT = Message.objects.filter(conversation=OuterRef("pk")).order_by().values("conversation").annotate(n=Count("pk"))
COLUMNS = {"messages_count": Subquery(_COUNT.values("n")), "live": Subquery(_LIVE.values("status")[:1])}

STATES = {
    Generation.Status.QUEUED.value: ("warn", "Waiting"),
    Generation.Status.RUNNING.value: ("busy", "Answering"),
    Generation.Status.DONE.value: ("", "Done"),
    Generation.Status.CANCELLED.value: ("", "Stopped"),
    Generation.Status.FAILED.value: ("bad", "Failed"),
    Generation.Status.INTERRUPTED.value: ("bad", "Interrupted"),
}


class ConversationPage(Page[Conversation]):
    list_display = ("short_id", "person", "updated", "created", "count", "state")
    list_select_related = ("owner",)
    search_fields = ("owner__username",)
    search_help_text = "A person's name, or the id of a conversation."
    asked_by_links = ("owner",)
    ordering = ("-updated_at", "-pk")
    shown = ("full_id", "person", "created", "updated", "count", "state", "model_wanted", "leases")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Conversation]:
        """Without what is a person's text."""
        present = super().get_queryset(request).filter(deleted_at=None)
        return present.defer("title", "system_prompt", "params", "imported").annotate(**COLUMNS)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Conversation], search_term: str
    ) -> tuple[QuerySet[Conversation], bool]:
        with contextlib.suppress(ValueError):
            return queryset.filter(pk=UUID(search_term.strip())), False
        return super().get_search_results(request, queryset, search_term)

    def has_delete_permission(self, request: HttpRequest, obj: Conversation | None = None) -> bool:
        return self.may(request, "delete_conversation")

    def has_read_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "read_text") and self.has_view_permission(request)

    # What is shown

    @admin.display(description="conversation", ordering="pk")
    def short_id(self, where: Conversation) -> str:
        return str(where.pk)[-8:]

    @admin.display(description="id")
    def full_id(self, where: Conversation) -> str:
        return str(where.pk)

    @admin.display(description="person", ordering="owner__username")
    def person(self, where: Conversation) -> str:
        return links.person(where.owner_id, where.owner.username)

    @admin.display(description="last message", ordering="updated_at")
    def updated(self, where: Conversation) -> str:
        return moment(where.updated_at)

    @admin.display(description="created", ordering="pk")
    def created(self, where: Conversation) -> str:
        return moment(where.created_at)

    @admin.display(description="messages")
    def count(self, where: Any) -> str:
        return f"{where.messages_count or 0:,}"

    @admin.display(description="state")
    def state(self, where: Any) -> str:
        return pill(*STATES[where.live]) if where.live else "–"

    @admin.display(description="model")
    def model_wanted(self, where: Conversation) -> str:
        return where.model or "whichever is served"

    @admin.display(description="leases")
    def leases(self, where: Conversation) -> str:
        return links.filtered("slots_pastlease", "The history of its leases", holder=where.pk)

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        where: Conversation | None = kwargs.get("obj")
        if where is not None:
            context["rows"], context["left_out"] = _rows(where)
            context["orders"] = self._orders(request, where)
        return super().render_change_form(request, context, *args, **kwargs)

    def _orders(self, request: HttpRequest, where: Any) -> list[dict[str, str]]:
        buttons = []
        if where.live and request.user.has_perm("conversations.stop_generation"):
            stop = reverse("admin:conversations_conversation_stop", args=[where.pk])
            buttons.append({"address": stop, "label": "Stop the answer"})
        if self.has_read_permission(request):
            read = reverse("admin:conversations_conversation_text", args=[where.pk])
            buttons.append({"address": read, "label": "Read the text (this is recorded)"})
        return buttons

    # Reading and stopping

    def get_urls(self) -> list[URLPattern]:
        guard, name = self.admin_site.admin_view, "conversations_conversation"
        return [
            path("<uuid:pk>/text/", guard(self.text_view), name=f"{name}_text"),
            path("<uuid:pk>/stop/", guard(self.stop_view), name=f"{name}_stop"),
            *super().get_urls(),
        ]

    def text_view(self, request: HttpRequest, pk: UUID) -> HttpResponse:
        """The words of everybody in it, once it is on record who looked."""
        if not self.has_read_permission(request):
            raise PermissionDenied("Reading people's conversations needs a right of its own.")
        if request.method != "POST":
            return HttpResponseRedirect(_page(pk))
        where = get_object_or_404(Conversation.objects.select_related("owner"), pk=pk, deleted_at=None)
        self.log_change(request, where, READ)
        logger.info("text read conversation=%s by=%s", where.pk, request.user.pk)
        about = {
            **self.admin_site.each_context(request),
            "title": f"Conversation of {where.owner.username}",
            "where": where,
            "words": _words(where),
            "opts": self.opts,
        }
        return TemplateResponse(request, "admin/conversations/conversation/text.html", about)

    def stop_view(self, request: HttpRequest, pk: UUID) -> HttpResponse:
        if not request.user.has_perm("conversations.stop_generation"):
            raise PermissionDenied
        present = Generation.objects.filter(conversation=pk, conversation__deleted_at=None)
        live = present.filter(status__in=Generation.LIVE).first()
        if request.method == "POST" and live is None:
            messages.info(request, "Nothing is being answered there any more.")
        elif request.method == "POST" and live is not None:
            actions.cancel(live.owner_id, live.pk)
            where = Conversation.objects.get(pk=pk)
            self.log_change(request, where, f"Stopped the answer {live.pk}.")
            messages.success(request, "Asked to stop; what is written stays.")
        return HttpResponseRedirect(_page(pk))

    # Deleting, for good

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """What goes with it, counted; Postgres removes it, so that Django does not know of it."""
        chosen = list(objs)
        count = Message.objects.filter(conversation__in=chosen).count()
        listed = [f"{where.pk}, of {where.owner.username}" for where in chosen]
        return listed, {"conversation": len(chosen), "message": count}, set(), []

    def delete_model(self, request: HttpRequest, obj: Conversation) -> None:
        # Django has a transaction open here; whoever has it open is told after the commit.
        transaction.on_commit(lambda: _delete(obj))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Conversation]) -> None:
        for where in queryset:
            self.delete_model(request, where)


def _page(pk: UUID) -> str:
    return reverse("admin:conversations_conversation_change", args=[pk])


def _delete(where: Conversation) -> None:
    with contextlib.suppress(errors.NotFound):  # its owner was faster
        actions.remove(where.owner_id, where.pk)


def _rows(where: Conversation) -> tuple[list[dict[str, Any]], int]:
    """What is known of its newest messages, oldest first, without their words; and how many older ones there are."""
    known = Message.objects.filter(conversation=where).annotate(length=Length("text"), thought=Length("reasoning"))
    newest = list(known.order_by("-pk").values("pk", "role", "created_at", "length", "thought")[: MOST_SHOWN + 1])
    shown: list[dict[str, Any]] = [dict(row) for row in newest[:MOST_SHOWN][::-1]]
    generations = Generation.objects.filter(message__in=[row["pk"] for row in shown]).order_by("pk")
    by_message = {generation.message_id: generation for generation in generations}
    for row in shown:
        row["at"] = moment(row["created_at"])
        if generation := by_message.get(row["pk"]):
            row["state"] = pill(*STATES[generation.status])
            row["timings"] = _timings(generation)
    left_out = known.count() - MOST_SHOWN if len(newest) > MOST_SHOWN else 0
    return shown, left_out


def _timings(generation: Generation) -> str:
    timings, said = generation.timings or {}, []
    if (first := timings.get("ttft_ms")) is not None:
        said.append(f"first token after {first / 1000:.2f} s")
    if speed := timings.get("tokens_per_second"):
        said.append(f"{speed:.0f} tokens/s")
    if (read := timings.get("prompt_n")) is not None:
        said.append(f"{read:,} read, {timings.get('cache_n') or 0:,} from the cache")
    if cause := timings.get("replay_cause"):
        took = f" in {spent / 1000:.2f} s" if (spent := timings.get("prompt_ms")) is not None else ""
        said.append(f"replayed{took}: {cause.replace('_', ' ')}")
    if code := (generation.error or {}).get("code"):
        said.append(f"error: {code}")
    return ", ".join(said)


def _words(where: Conversation) -> list[dict[str, Any]]:
    """Every message in order of time, with those that are in no branch shown to its owner marked."""
    live = {view.id: view for view in history.path(where.pk, where.leaf_id)}
    words = []
    for message in Message.objects.filter(conversation=where).defer("imported").order_by("pk"):
        view = live.get(message.pk)
        words.append(
            {
                "role": message.get_role_display(),
                "at": moment(message.created_at),
                "text": view.text if view else message.text,
                "reasoning": view.reasoning if view else message.reasoning,
                "aside": view is None,
            }
        )
    return words
