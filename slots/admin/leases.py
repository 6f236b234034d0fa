"""Slots with the leases on them, and the leases that ended. Read only, but for what an administrator may end.

Holders are bare UUIDs here; `conversations.admin` shows whose they are.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Self

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.http import urlencode

from slots import leases
from slots.admin.confirming import Confirmation, confirm
from slots.admin.reading import Page, moment, pill
from slots.models import PastLease, Slot

logger = logging.getLogger(__name__)

CHANGED = "{slot} has another lease by now, or none: nothing was done there. Look at the list again."

STOPPING = "warn", "Stopping", "Asked to stop, not yet quiet on the server."
AT_WORK: dict[str | None, tuple[str, str]] = {
    Slot.Work.TURN: ("Busy", "An answer is being written."),
    Slot.Work.TITLE: ("Title", "A title for its conversation is being written; yields to the next message."),
    Slot.Work.PREWARM: (
        "Prewarm",
        "Its conversation is being read ahead of the next message; yields to whoever sends.",
    ),
    Slot.Work.PARK: ("Park", "Its cache is being saved to a file ahead; yields to whoever sends."),
    Slot.Work.WIPE: ("Wipe", "Files that must not be kept are being overwritten from it; yields to whoever sends."),
}


def condition(slot: Slot) -> tuple[str, str, str]:
    """What a slot is doing: colour, word, and the sentence that explains it."""
    if slot.condition == Slot.Condition.GONE:
        return "", "Gone", "The server came back with fewer slots."
    if slot.condition == Slot.Condition.UNUSED:
        return "", "Unused", "The server answers one at a time, on slot 0."
    if slot.condition == Slot.Condition.STOPPING:
        return STOPPING
    if slot.phase == Slot.Phase.BUSY:
        return "busy", *AT_WORK[slot.work]
    if slot.phase == Slot.Phase.IDLE:
        return "good", "Idle", "Kept warm for its conversation; yields to whoever waits."
    return "", "Free", "Nobody has it."


@dataclass(frozen=True, slots=True)
class Shown:
    """A lease as a page showed it: what is done on that page is done to this one and to none that came later."""

    slot: int
    fence: int

    @classmethod
    def read(cls, words: Iterable[str]) -> list[Self]:
        """From what `str` wrote; anything else is left out."""
        pairs = [word.split(":") for word in words]
        return [cls(int(pair[0]), int(pair[1])) for pair in pairs if len(pair) == 2 and all(map(str.isdecimal, pair))]

    def __str__(self) -> str:
        return f"{self.slot}:{self.fence}"

    @property
    def now(self) -> Slot | None:
        """The slot, if it still has this lease."""
        rows = Slot.objects.select_related("server").exclude(phase=Slot.Phase.FREE)
        return rows.filter(pk=self.slot, fence=self.fence).first()


class SlotPage(Page[Slot]):
    list_display = ["place", "condition_shown", "holder_shown", "since_shown", "expires_shown", "cached"]
    list_display_links = ("place",)
    list_filter = ("phase", "work", "server")
    list_select_related = ("server",)
    ordering = ("server__url", "id_slot")
    actions = [
        "evict",
    ]
    shown: ClassVar[tuple[str, ...]] = (
        "place", "condition_shown", "meaning", "holder_shown", "since_shown", "expires_shown", "cached", "lease",
    )  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[Slot]:
        return super().get_queryset(request).select_related("server")

    def has_evict_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "evict_slot")

    # What is shown

    def condition(self, slot: Slot) -> tuple[str, str, str]:
        return condition(slot)

    @admin.display(description="slot", ordering="server__url")
    def place(self, slot: Slot) -> str:
        return f"{slot.server.url}\u00a0·\u00a0{slot.id_slot}"

    @admin.display(description="state", ordering="phase")
    def condition_shown(self, slot: Slot) -> str:
        kind, word, _ = self.condition(slot)
        return pill(kind, word)

    @admin.display(description="what that means")
    def meaning(self, slot: Slot) -> str:
        return self.condition(slot)[2]

    @admin.display(description="holder")
    def holder_shown(self, slot: Slot) -> str:
        return str(slot.holder or "–")

    @admin.display(description="since", ordering="since")
    def since_shown(self, slot: Slot) -> str:
        return moment(slot.since)

    @admin.display(description="expires", ordering="expires_at")
    def expires_shown(self, slot: Slot) -> str:
        return moment(slot.expires_at)

    @admin.display(description="in the cache", ordering="kv_tokens")
    def cached(self, slot: Slot) -> str:
        if slot.kv_tokens is None:
            return "not known" if slot.kv_of else "–"
        return f"{slot.kv_tokens:,} tokens"

    @admin.display(description="fence")
    def lease(self, slot: Slot) -> str:
        return str(slot.fence)

    # Evicting

    def get_urls(self) -> list[URLPattern]:
        evict = path("evict/", self.admin_site.admin_view(self.evict_view), name="slots_slot_evict")
        return [evict, *super().get_urls()]

    @admin.action(description="Evict…", permissions=["evict"])
    def evict(self, request: HttpRequest, chosen: QuerySet[Slot]) -> HttpResponse | None:
        return self.ask_first(request, chosen, "slots_slot_evict")

    def ask_first(self, request: HttpRequest, chosen: QuerySet[Slot], view: str) -> HttpResponse | None:
        """On to the page that says what will happen to the leases on the chosen slots."""
        held = [Shown(slot.pk, slot.fence) for slot in chosen if slot.phase != Slot.Phase.FREE]
        if not held:
            messages.info(request, "There is no lease on what was chosen.")
            return None
        return HttpResponseRedirect(address_of(view, held))

    def evict_view(self, request: HttpRequest) -> HttpResponse:
        if not self.has_evict_permission(request):
            raise PermissionDenied
        if request.method != "POST":
            return self._ask(request, Shown.read(request.GET.getlist("lease")))
        for shown in Shown.read(request.POST.getlist("lease")):
            self._evict_one(request, shown)
        return back_to_list()

    def _ask(self, request: HttpRequest, asked: list[Shown]) -> HttpResponse:
        held = [(shown, slot) for shown in asked if (slot := shown.now)]
        if not held:
            messages.warning(request, CHANGED.format(slot="This slot"))
            return back_to_list()
        confirmation = Confirmation(
            title="Evict?",
            button="Evict",
            back=reverse("admin:slots_slot_changelist"),
            sentences=_consequences([slot for _, slot in held]),
            items=[self.describe(slot) for _, slot in held],
            hidden=[("lease", str(shown)) for shown, _ in held],
        )
        return confirm(request, self.admin_site, confirmation)

    def _evict_one(self, request: HttpRequest, shown: Shown) -> None:
        slot = shown.now
        if slot is None or not leases.evict(shown.slot, shown.fence):
            messages.warning(request, CHANGED.format(slot=self._name(shown.slot)))
            return
        logger.info("evicted slot=%s fence=%s holder=%s by=%s", slot.pk, shown.fence, slot.holder, request.user.pk)
        self.log_change(request, slot, f"Evicted {self.describe(slot)}, fence {shown.fence}.")
        self.evicted(slot)
        messages.success(request, f"Evicted: {self.describe(slot)}.")

    def describe(self, slot: Slot) -> str:
        """What lies on a slot, in words."""
        words = condition(slot)[1].lower()
        return f"slot {slot.id_slot} of {slot.server.url}, {words}, of conversation {slot.holder}"

    def evicted(self, slot: Slot) -> None:
        """What its holder must be told."""

    def _name(self, slot: int) -> str:
        found = Slot.objects.select_related("server").filter(pk=slot).first()
        return f"Slot {found.id_slot} of {found.server.url}" if found else "This slot"

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        slot: Slot | None = kwargs.get("obj")
        context["orders"] = self.orders(request, slot) if slot and slot.holder else []
        return super().render_change_form(request, context, *args, **kwargs)

    def orders(self, request: HttpRequest, slot: Slot) -> list[dict[str, str]]:
        """The buttons on the page of a slot that has a lease."""
        if not self.has_evict_permission(request):
            return []
        address = address_of("slots_slot_evict", [Shown(slot.pk, slot.fence)])
        return [{"address": address, "label": "Evict…", "asks": "yes"}]


class EndedWithin(admin.SimpleListFilter):
    """Days, counted back from now."""

    title = "ended"
    parameter_name = "ended"
    days = {"1": "Within a day", "2": "Within two days", "7": "Within a week", "30": "Within a month"}

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return list(self.days.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[PastLease]) -> QuerySet[PastLease]:
        if (days := self.value()) not in self.days:
            return queryset
        return queryset.filter(ended_at__gte=timezone.now() - timedelta(days=int(days)))


class PastLeasePage(Page[PastLease]):
    list_display = ["fence", "place", "phase_shown", "holder_shown", "began", "took", "ended_by_shown"]
    list_filter = ("ended_by", EndedWithin, "phase", "work", "slot__server")
    asked_by_links = ("holder", "holder__exact")
    ordering = ("-fence",)  # the primary key, which only grows: newest first without sorting millions
    sortable_by = ()
    shown: ClassVar[tuple[str, ...]] = (
        "fence", "place", "phase_shown", "holder_shown", "began", "ended", "took", "ended_by_shown",
    )  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[PastLease]:
        return super().get_queryset(request).select_related("slot__server")

    @admin.display(description="slot")
    def place(self, past: PastLease) -> str:
        return f"{past.slot.server.url}\u00a0·\u00a0{past.slot.id_slot}"

    @admin.display(description="was")
    def phase_shown(self, past: PastLease) -> str:
        if past.phase == Slot.Phase.IDLE:
            return pill("good", "Idle")
        return pill("busy", AT_WORK[past.work][0])

    @admin.display(description="holder")
    def holder_shown(self, past: PastLease) -> str:
        return str(past.holder)

    @admin.display(description="began")
    def began(self, past: PastLease) -> str:
        return moment(past.began_at)

    @admin.display(description="ended")
    def ended(self, past: PastLease) -> str:
        return moment(past.ended_at)

    @admin.display(description="took")
    def took(self, past: PastLease) -> str:
        seconds = (past.ended_at - past.began_at).total_seconds()
        if seconds < 60:
            return f"{seconds:.1f} s"
        minutes, seconds = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"

    @admin.display(description="ended by")
    def ended_by_shown(self, past: PastLease) -> str:
        return past.ended_by.replace("_", " ").capitalize()


def address_of(view: str, asked: Iterable[Shown]) -> str:
    """The page of an action on these leases."""
    return f"{reverse(f'admin:{view}')}?{urlencode({'lease': [str(shown) for shown in asked]}, doseq=True)}"


def back_to_list() -> HttpResponseRedirect:
    return HttpResponseRedirect(reverse("admin:slots_slot_changelist"))


def _consequences(held: list[Slot]) -> list[str]:
    phases = {slot.work if slot.phase == Slot.Phase.BUSY else slot.phase for slot in held}
    said = []
    if Slot.Phase.IDLE in phases:
        said.append(
            "Idle: its conversation loses the cache. Its next message brings it back from a file, where there is one, "
            "or reads the history again, which takes time."
        )
    if Slot.Work.TURN in phases:
        said.append(
            "Busy: the lease ends at once and its worker lets go. What is written stays, and the answer goes back to "
            "the queue, to be gone on with on whichever slot comes next."
        )
    if phases & {Slot.Work.TITLE, Slot.Work.PREWARM, Slot.Work.PARK}:
        said.append("Title, prewarm, park: the work is given up, and its conversation loses the cache.")
    if Slot.Work.WIPE in phases:
        said.append("Wipe: the work is given up. What is still to be overwritten is, from the next free slot.")
    return said
