"""The files that caches are parked in: whose, how large, how old. Never what is in them; read only."""

from typing import ClassVar

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from slots import disk
from slots.admin.reading import Page, moment, pill
from slots.models import Park

State = Park.State
STATES = {
    State.EMPTY: ("", "Nothing is in it."),
    State.WRITING: ("busy", "Nobody reads it until the server has said what it wrote."),
    State.READY: ("good", "Restored when its conversation comes back to a slot of this server."),
    State.STALE: ("warn", "It is read no more. The next free slot writes nothing over it."),
}


class ParkPage(Page[Park]):
    list_display = ["place", "state_shown", "holder_shown", "tokens_shown", "size", "saved", "used"]
    list_display_links = ("place",)
    list_filter = ("state", "server")
    ordering = ("server__url", "number")
    heading = "Parked files"
    shown: ClassVar[tuple[str, ...]] = (
        "place", "name", "state_shown", "meaning", "holder_shown", "tokens_shown", "size", "saved", "used", "due",
    )  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[Park]:
        return super().get_queryset(request).select_related("server").defer("outline")

    @admin.display(description="file", ordering="server__url")
    def place(self, park: Park) -> str:
        return f"{park.server.url}\u00a0·\u00a0{park.number}"

    @admin.display(description="state", ordering="state")
    def state_shown(self, park: Park) -> str:
        state = State(park.state)
        return pill(STATES[state][0], str(state.label))

    @admin.display(description="what that means")
    def meaning(self, park: Park) -> str:
        return STATES[State(park.state)][1]

    @admin.display(description="holder")
    def holder_shown(self, park: Park) -> str:
        return str(park.holder or "–")

    @admin.display(description="tokens", ordering="tokens")
    def tokens_shown(self, park: Park) -> str:
        return f"{park.tokens:,}" if park.tokens else "–"

    @admin.display(description="size", ordering="bytes")
    def size(self, park: Park) -> str:
        return disk.size(park.bytes) if park.bytes else "–"

    @admin.display(description="written", ordering="saved_at")
    def saved(self, park: Park) -> str:
        return moment(park.saved_at if park.state == State.READY else None)

    @admin.display(description="last used", ordering="used_at")
    def used(self, park: Park) -> str:
        return moment(park.used_at if park.state == State.READY else None)

    @admin.display(description="to be overwritten since", ordering="due_at")
    def due(self, park: Park) -> str:
        return moment(park.due_at)
