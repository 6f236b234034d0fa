"""The leases and files of `slots.admin`, with the people who hold them and the answers being written under them."""

import logging
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.timesince import timesince

from conversations import actions, errors, prefixes, turns
from conversations.admin import links
from conversations.models import Conversation, Generation
from slots.admin.confirming import Confirmation, confirm
from slots.admin.files import ParkPage
from slots.admin.leases import STOPPING, PastLeasePage, Shown, SlotPage, address_of, back_to_list
from slots.models import Park, PastLease, Slot

logger = logging.getLogger(__name__)

_HOLDER = Conversation.objects.filter(pk=OuterRef("holder"), deleted_at=None)
_RUNNING = Generation.objects.filter(fence=OuterRef("fence"), status=Generation.Status.RUNNING)
PEOPLE = {
    "person": Subquery(_HOLDER.values("owner__username")[:1]),
    "person_pk": Subquery(_HOLDER.values("owner")[:1]),
}
RUNNING = {
    "running": Subquery(_RUNNING.values("pk")[:1]),
    "running_since": Subquery(_RUNNING.values("started_at")[:1]),
    "running_attempt": Subquery(_RUNNING.values("attempt")[:1]),
    "stop_asked_at": Subquery(_RUNNING.values("stop_asked_at")[:1]),
}
ENDED = "The answer on {slot} has ended by itself, or goes on elsewhere: nothing was stopped."


class SlotOfPersonPage(SlotPage):
    list_display = [
        "place", "condition_shown", "person_shown", "conversation_shown", "runs", "since_shown", "expires_shown",
        "cached",
    ]  # fmt: skip
    actions = ["evict", "stop"]
    shown = (
        "place", "condition_shown", "meaning", "person_shown", "conversation_shown", "runs", "since_shown",
        "expires_shown", "cached", "lease",
    )  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[Slot]:
        return super().get_queryset(request).annotate(**PEOPLE, **RUNNING)

    def has_stop_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("conversations.stop_generation"))

    def condition(self, slot: Any) -> tuple[str, str, str]:
        """A normal stop leaves the lease busy until the slot is quiet: it is shown as what it is."""
        return STOPPING if slot.stop_asked_at else super().condition(slot)

    @admin.display(description="person")
    def person_shown(self, slot: Any) -> str:
        return links.person(slot.person_pk, slot.person)

    @admin.display(description="conversation")
    def conversation_shown(self, slot: Any) -> str:
        return _conversation(slot)

    @admin.display(description="what runs")
    def runs(self, slot: Any) -> str:
        if slot.running is None:
            return "–"
        seconds = (timezone.now() - slot.running_since).total_seconds()
        since = f"{seconds:.0f} s" if seconds < 60 else timesince(slot.running_since, depth=1)
        again = f", attempt {slot.running_attempt}" if slot.running_attempt > 1 else ""
        return f"an answer for {since}{again}{', asked to stop' if slot.stop_asked_at else ''}"

    def describe(self, slot: Slot) -> str:
        holders = Conversation.objects.filter(pk__in=[slot.holder], deleted_at=None)
        found = holders.values_list("owner__username", flat=True).first()
        whose = f" ({found})" if found else ""
        return f"{super().describe(slot)}{whose}"

    def evicted(self, slot: Slot) -> None:
        """Its worker lets go, and the queue is looked at, now and not with the next poll."""
        turns.wake()

    # Stopping an answer

    def get_urls(self) -> list[URLPattern]:
        stop = path("stop/", self.admin_site.admin_view(self.stop_view), name="slots_slot_stop")
        return [stop, *super().get_urls()]

    @admin.action(description="Stop generation…", permissions=["stop"])
    def stop(self, request: HttpRequest, chosen: QuerySet[Slot]) -> HttpResponse | None:
        return self.ask_first(request, chosen, "slots_slot_stop")

    def stop_view(self, request: HttpRequest) -> HttpResponse:
        if not self.has_stop_permission(request):
            raise PermissionDenied
        if request.method != "POST":
            return self._ask_to_stop(request, Shown.read(request.GET.getlist("lease")))
        for shown in Shown.read(request.POST.getlist("lease")):
            self._stop_one(request, shown)
        return back_to_list()

    def _ask_to_stop(self, request: HttpRequest, asked: list[Shown]) -> HttpResponse:
        running = [(shown, slot) for shown in asked if (slot := shown.now) and _running(shown)]
        if not running:
            messages.warning(request, "Nothing is being answered there: nothing to stop.")
            return back_to_list()
        confirmation = Confirmation(
            title="Stop the answer?",
            button="Stop",
            back=reverse("admin:slots_slot_changelist"),
            sentences=[
                "As if the person pressed Stop: what is written so far stays and is shown as stopped. "
                "The slot stays warm for the conversation."
            ],
            items=[self.describe(slot) for _, slot in running],
            hidden=[("lease", str(shown)) for shown, _ in running],
        )
        return confirm(request, self.admin_site, confirmation)

    def _stop_one(self, request: HttpRequest, shown: Shown) -> None:
        slot, generation = shown.now, _running(shown)
        if slot is None or generation is None:
            messages.warning(request, ENDED.format(slot=self._name(shown.slot)))
            return
        try:
            actions.cancel(generation.owner_id, generation.pk)
        except errors.NotFound:
            messages.warning(request, ENDED.format(slot=self._name(shown.slot)))
            return
        logger.info("asked to stop generation=%s fence=%s by=%s", generation.pk, shown.fence, request.user.pk)
        self.log_change(request, slot, f"Stopped the answer {generation.pk} on {self.describe(slot)}.")
        messages.success(request, f"Asked to stop: {self.describe(slot)}.")

    def orders(self, request: HttpRequest, slot: Slot) -> list[dict[str, str]]:
        buttons = super().orders(request, slot)
        if slot.work == Slot.Work.TURN and self.has_stop_permission(request):
            address = address_of("slots_slot_stop", [Shown(slot.pk, slot.fence)])
            buttons.insert(0, {"address": address, "label": "Stop generation…", "asks": "yes"})
        return buttons


class PastLeaseOfPersonPage(PastLeasePage):
    list_display = [
        "fence", "place", "phase_shown", "person_shown", "conversation_shown", "began", "took", "ended_by_shown",
    ]  # fmt: skip
    shown = (
        "fence", "place", "phase_shown", "person_shown", "conversation_shown", "began", "ended", "took",
        "ended_by_shown",
    )  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[PastLease]:
        return super().get_queryset(request).annotate(**PEOPLE)

    @admin.display(description="person")
    def person_shown(self, past: Any) -> str:
        return links.person(past.person_pk, past.person)

    @admin.display(description="conversation")
    def conversation_shown(self, past: Any) -> str:
        return _conversation(past)


class ParkOfPersonPage(ParkPage):
    list_display = [
        "place", "state_shown", "person_shown", "conversation_shown", "tokens_shown", "size", "saved", "used",
    ]  # fmt: skip
    shown = (
        "place", "name", "state_shown", "meaning", "person_shown", "conversation_shown", "tokens_shown", "size",
        "saved", "used", "due",
    )  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[Park]:
        return super().get_queryset(request).annotate(**PEOPLE)

    @admin.display(description="person")
    def person_shown(self, park: Any) -> str:
        return links.person(park.person_pk, park.person)

    @admin.display(description="conversation")
    def conversation_shown(self, park: Any) -> str:
        return _conversation(park)


def _conversation(of: Any) -> str:
    """A row's, annotated with its person; of work that is done for nobody there is none, and none was deleted."""
    if of.holder is None:
        return "–"
    if prefixes.is_one(of.holder):
        return "none: how those of a preset begin"
    if getattr(of, "work", None) == Slot.Work.WIPE:
        return "none: parked files are overwritten"
    return links.conversation(of.holder) if of.person else "deleted"


def _running(shown: Shown) -> Generation | None:
    """The answer that is being written under this very lease."""
    return Generation.objects.filter(fence=shown.fence, status=Generation.Status.RUNNING).first()
