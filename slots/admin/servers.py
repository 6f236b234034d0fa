"""Servers: adding one, looking at it, draining it, retiring it."""

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Count, Q, QuerySet
from django.forms.widgets import Script
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.html import format_html

from slots import advice, disk, grades, orders, servers
from slots.admin.confirming import Confirmation, confirm
from slots.admin.reading import Page, counting, moment, pill
from slots.admin.standing import standing
from slots.models import Server, Slot

State = Server.State
Grade = Server.Grade
COLOURS = {Grade.FULL: "good", Grade.NO_PARKING: "good", Grade.ONE_AT_A_TIME: "warn", Grade.UNUSABLE: "bad"}
NOT_KNOWN = "not known yet"

_READY = Q(slots__condition=Slot.Condition.READY)
PLACES = {
    "free": Count("slots", filter=_READY & Q(slots__phase=Slot.Phase.FREE)),
    "busy": Count("slots", filter=Q(slots__phase=Slot.Phase.BUSY)),
    "idle": Count("slots", filter=Q(slots__phase=Slot.Phase.IDLE)),
    "stopping": Count("slots", filter=Q(slots__condition=Slot.Condition.STOPPING)),
}


def counted(rows: QuerySet[Server]) -> QuerySet[Server]:
    """With how many of its slots are free, busy, idle and stopping."""
    return rows.annotate(**PLACES)


class AddForm(forms.ModelForm):  # type: ignore[type-arg]
    """A server's address and key; the key may be in the address, as in LLAMA_SERVERS."""

    url = forms.CharField(
        label="Address",
        help_text="Where this machine reaches its llama-server, like http://192.168.1.20:8080",
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off", "inputmode": "url"}),
    )
    api_key = forms.CharField(
        label="API key",
        required=False,
        help_text="What it was started with as --api-key. Stored, and never shown again.",
        widget=forms.PasswordInput(attrs={"class": "vTextField", "autocomplete": "new-password"}),
    )

    class Meta:
        model = Server
        fields = ("url", "api_key")

    def clean_url(self) -> str:
        entry = self.cleaned_data["url"].strip()
        if "://" not in entry:
            raise forms.ValidationError(f"Begin with http:// or https://: meant was probably http://{entry}")
        try:
            read = servers.address(entry)
        except servers.NotAnAddress as error:
            raise forms.ValidationError(str(error)) from error
        self.key_in_address = read.api_key
        if Server.objects.filter(url=read.url, state=State.RETIRED).exists():
            raise forms.ValidationError("This server is known and retired: put it back into service on its page.")
        return read.url

    def clean(self) -> dict[str, Any]:
        said = super().clean() or {}
        said["api_key"] = said.get("api_key") or getattr(self, "key_in_address", "")
        return said


class KeyForm(forms.ModelForm):  # type: ignore[type-arg]
    """Another key. What is stored is not shown, and left alone when nothing is typed."""

    api_key = forms.CharField(
        label="New API key",
        required=False,
        help_text="Leave empty to keep the present one. Never shown again.",
        widget=forms.PasswordInput(attrs={"class": "vTextField", "autocomplete": "new-password"}),
    )
    without_key = forms.BooleanField(label="It needs no key", required=False)

    class Meta:
        model = Server
        fields = ("api_key",)


class ServerPage(Page[Server]):
    list_display = ("address", "listed", "grade_shown", "model_shown", "places", "context", "origin")
    list_filter = ("state",)
    ordering = ("url",)
    actions = ("look_at", "probe_again", "drain", "serve", "retire")
    shown = (
        "address", "standing", "why", "grade_shown", "costs_shown", "cure_shown", "files", "foreign_shown",
        "model_shown", "places", "context", "origin", "has_key",
    )  # fmt: skip

    class Media:
        js = (Script("copy.js", type="module"),)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.may(request, "add_server")

    def has_change_permission(self, request: HttpRequest, obj: Server | None = None) -> bool:
        return self.may(request, "change_server")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Server]:
        return counted(super().get_queryset(request))

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        return super().get_form(request, obj, change, form=KeyForm if change else AddForm, **kwargs)

    def get_fieldsets(self, request: HttpRequest, obj: Server | None = None) -> Any:
        if obj is None:
            return ((None, {"fields": ("url", "api_key")}),)
        if obj.from_environment or not self.has_change_permission(request, obj):
            return ((None, {"fields": self.shown}),)
        return ((None, {"fields": self.shown}), ("Key", {"fields": ("api_key", "without_key")}))

    def get_readonly_fields(self, request: HttpRequest, obj: Server | None = None) -> Any:
        return self.shown if obj else ()

    # What is shown

    @admin.display(description="address", ordering="url")
    def address(self, server: Server) -> str:
        return server.url

    @admin.display(description="state", ordering="state")
    def standing(self, server: Server) -> str:
        kind, words, _ = standing(server)
        return pill(kind, words)

    @admin.display(description="state", ordering="state")
    def listed(self, server: Server) -> str:
        """In the list with the reason, where something is wrong."""
        kind, words, sentence = standing(server)
        return format_html("{} {}", pill(kind, words), sentence) if kind == "bad" else pill(kind, words)

    @admin.display(description="what that means")
    def why(self, server: Server) -> str:
        return standing(server)[2]

    @admin.display(description="grade", ordering="grade")
    def grade_shown(self, server: Server) -> str:
        verdict = grades.of(server, timezone.now())
        if verdict is None or server.state == State.RETIRED:
            return NOT_KNOWN
        return pill(COLOURS[verdict.grade], grades.words(server, timezone.now()).capitalize())

    @admin.display(description="what that costs")
    def costs_shown(self, server: Server) -> str:
        verdict = grades.of(server, timezone.now())
        return verdict.costs if verdict else NOT_KNOWN

    @admin.display(description="what would help")
    def cure_shown(self, server: Server) -> str:
        verdict = grades.of(server, timezone.now())
        if verdict is None or not verdict.cure:
            return "–"
        if not advice.is_command(verdict.cure):
            return verdict.cure
        box = '{}<div class="copybox"><code>{}</code><button type="button" data-copy>Copy</button></div>'
        return format_html(box, advice.introduction(verdict.cure), verdict.cure)

    @admin.display(description="parked files")
    def files(self, server: Server) -> str:
        return disk.sentences(server)

    @admin.display(description="requests of others", ordering="foreign_count")
    def foreign_shown(self, server: Server) -> str:
        if not server.foreign_at:
            return "None noticed."
        return format_html("{} noticed, the latest {}", f"{server.foreign_count:,}", moment(server.foreign_at[-1]))

    @admin.display(description="model", ordering="model")
    def model_shown(self, server: Server) -> str:
        return server.model or NOT_KNOWN

    @admin.display(description="places")
    def places(self, server: Server) -> str:
        counts = {word: getattr(server, word) for word in PLACES}
        return ", ".join(f"{count} {word}" for word, count in counts.items() if count) or NOT_KNOWN

    @admin.display(description="context per slot", ordering="n_ctx")
    def context(self, server: Server) -> str:
        return f"{server.n_ctx:,} tokens" if server.n_ctx else NOT_KNOWN

    @admin.display(description="listed by", ordering="from_environment")
    def origin(self, server: Server) -> str:
        return "LLAMA_SERVERS" if server.from_environment else "the admin"

    @admin.display(description="key")
    def has_key(self, server: Server) -> str:
        return "There is one; it is not shown." if server.api_key else "None."

    # Saving: two filtered updates, never a row as a page once read it

    def save_model(self, request: HttpRequest, obj: Server, form: Any, change: bool) -> None:
        if not change:
            super().save_model(request, obj, form, change)
        elif form.cleaned_data["api_key"] or form.cleaned_data["without_key"]:
            try:
                orders.change_key(obj, form.cleaned_data["api_key"])
            except orders.Refused as refused:  # its page has no such field: it was another's when it was opened
                raise PermissionDenied(str(refused)) from refused
        # Django has a transaction open here, which must not wait for a server.
        transaction.on_commit(lambda: self._look(request, obj.pk))

    # Orders

    def get_urls(self) -> list[URLPattern]:
        views = {
            "look": self.look_view, "probe": self.probe_view, "drain": self.drain_view, "serve": self.serve_view,
            "retire": self.retire_view,
        }  # fmt: skip
        ours = [
            path(f"<int:pk>/{name}/", self.admin_site.admin_view(view), name=f"slots_server_{name}")
            for name, view in views.items()
        ]
        return [*ours, *super().get_urls()]

    def look_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        return self._ordered(request, pk, self._look_at_one)

    def probe_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        return self._ordered(request, pk, self._probe_one)

    def drain_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        return self._ordered(request, pk, self._drain_one)

    def serve_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        return self._ordered(request, pk, self._serve_one)

    def retire_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        if request.method == "POST":
            return self._ordered(request, pk, self._retire_one)
        server = self._server(request, pk)
        return confirm(request, self.admin_site, _retiring([server], _page(pk)))

    @admin.action(description="Look now", permissions=["change"])
    def look_at(self, request: HttpRequest, chosen: QuerySet[Server]) -> None:
        self._each(request, chosen, self._look_at_one)

    @admin.action(description="Probe again", permissions=["change"])
    def probe_again(self, request: HttpRequest, chosen: QuerySet[Server]) -> None:
        self._each(request, chosen, self._probe_one)

    @admin.action(description="Drain: give no new leases", permissions=["change"])
    def drain(self, request: HttpRequest, chosen: QuerySet[Server]) -> None:
        self._each(request, chosen, self._drain_one)

    @admin.action(description="Put back into service", permissions=["change"])
    def serve(self, request: HttpRequest, chosen: QuerySet[Server]) -> None:
        self._each(request, chosen, self._serve_one)

    @admin.action(description="Retire…", permissions=["change"])
    def retire(self, request: HttpRequest, chosen: QuerySet[Server]) -> HttpResponse | None:
        if "confirmed" in request.POST:
            self._each(request, chosen, self._retire_one)
            return None
        return confirm(request, self.admin_site, _retiring(list(chosen), reverse("admin:slots_server_changelist")))

    def _server(self, request: HttpRequest, pk: int) -> Server:
        if not self.has_change_permission(request):
            raise PermissionDenied
        return get_object_or_404(Server, pk=pk)

    def _ordered(self, request: HttpRequest, pk: int, order: Callable[[HttpRequest, Server], None]) -> HttpResponse:
        server = self._server(request, pk)
        if request.method != "POST":
            return HttpResponse(status=405, headers={"Allow": "POST"})
        self._each(request, [server], order)
        return HttpResponseRedirect(_page(pk))

    def _each(self, request: HttpRequest, chosen: Any, order: Callable[[HttpRequest, Server], None]) -> None:
        for server in chosen:
            try:
                order(request, server)
            except orders.Refused as refused:
                messages.error(request, str(refused))

    def _look_at_one(self, request: HttpRequest, server: Server) -> None:
        if server.state == State.RETIRED:
            raise orders.Refused(f"{server.url} is retired: put it back into service first.")
        self._look(request, server.pk)

    def _probe_one(self, request: HttpRequest, server: Server) -> None:
        orders.probe_again(server)
        self.log_change(request, server, "Probed again.")
        messages.success(request, f"{server.url} is tried once more by a worker: that takes a few seconds.")

    def _drain_one(self, request: HttpRequest, server: Server) -> None:
        orders.drain(server)
        self.log_change(request, server, "Drained.")
        messages.success(request, f"{server.url} gets no new leases; what runs there ends in peace.")

    def _serve_one(self, request: HttpRequest, server: Server) -> None:
        orders.serve(server)
        self.log_change(request, server, "Put back into service.")
        self._look(request, server.pk)

    def _retire_one(self, request: HttpRequest, server: Server) -> None:
        orders.retire(server)
        self.log_change(request, server, "Retired.")
        messages.success(request, f"{server.url} is no longer used.")

    def _look(self, request: HttpRequest, pk: int) -> None:
        """Ask it now, and tell what came of it."""
        server = Server.objects.get(pk=pk)
        answers = servers.look(server)
        server.refresh_from_db()
        if answers and server.state != State.UNUSABLE:
            found = f"{server.model}, {counting(server.total_slots or 0, 'place')} of {server.n_ctx:,} tokens"
            draining = " It is being drained." if server.state == State.DRAINING else ""
            trying = " It is being tried out: that takes a few seconds." if server.state == State.PROBING else ""
            messages.success(request, f"{server.url} answers: {found}.{draining}{trying}")
        else:
            why = server.trouble or server.costs
            messages.warning(request, f"Not usable yet: {why} Workers go on looking once a second.")

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        server: Server | None = kwargs.get("obj")
        if server is not None and self.has_change_permission(request, server):
            context["orders"] = _orders(server)
        if server is not None and server.from_environment:
            context["show_save"] = False
        return super().render_change_form(request, context, *args, **kwargs)


def _page(pk: int) -> str:
    return reverse("admin:slots_server_change", args=[pk])


def _orders(server: Server) -> list[dict[str, str]]:
    """The buttons that make sense in its present state. A link asks first, the rest are done at once."""
    offered = {
        State.READY: ("look", "probe", "drain"),
        State.UNUSABLE: ("look", "probe"),
        State.DRAINING: ("look", "serve"),
        State.RETIRED: ("serve",),
    }.get(State(server.state), ("look",))
    labels = {"look": "Look now", "probe": "Probe again", "drain": "Drain", "serve": "Put back into service"}
    buttons = [
        {"address": reverse(f"admin:slots_server_{name}", args=[server.pk]), "label": labels[name]} for name in offered
    ]
    if server.state != State.RETIRED and not server.from_environment:
        retire = reverse("admin:slots_server_retire", args=[server.pk])
        buttons.append({"address": retire, "label": "Retire…", "asks": "yes"})
    return buttons


def _retiring(chosen: list[Server], back: str) -> Confirmation:
    return Confirmation(
        title="Retire?" if len(chosen) > 1 else f"Retire {chosen[0].url}?",
        button="Retire",
        back=back,
        sentences=(
            "It is no longer used and no longer looked at. Answers that are being written there are finished; "
            "conversations kept warm there are read again elsewhere with their next message.",
            "Nothing is deleted: the history of its leases stays, and it can be put back into service.",
        ),
        items=[f"{server.url}: {counting(orders.busy(server), 'answer')} under way" for server in chosen],
        hidden=[
            ("action", "retire"),
            ("confirmed", "yes"),
            *((ACTION_CHECKBOX_NAME, str(server.pk)) for server in chosen),
        ],
    )
