"""What administrators did: to whom or what, and when. Nobody writes or removes anything here."""

from django.contrib import admin
from django.contrib.admin.models import ADDITION, DELETION, LogEntry
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html

from slots.admin.reading import Page, moment


class RecordPage(Page[LogEntry]):
    heading = "Record"
    list_display = ("at", "who", "to_what", "did")
    list_display_links = None
    list_select_related = ("user", "content_type")
    search_fields = ("user__username",)
    search_help_text = "The name of an administrator."
    ordering = ("-pk",)
    sortable_by = ()
    shown = ("at", "who", "to_what", "did")

    def get_queryset(self, request: HttpRequest) -> QuerySet[LogEntry]:
        return super().get_queryset(request).select_related("user", "content_type")

    @admin.display(description="when")
    def at(self, entry: LogEntry) -> str:
        return moment(entry.action_time)

    @admin.display(description="who")
    def who(self, entry: LogEntry) -> str:
        return str(entry.user)

    @admin.display(description="to what")
    def to_what(self, entry: LogEntry) -> str:
        kind = entry.content_type.name if entry.content_type else "something"
        address = None if entry.action_flag == DELETION else entry.get_admin_url()
        if address is None:
            return f"{kind} {entry.object_repr}"
        return format_html('{} <a href="{}">{}</a>', kind, address, entry.object_repr)

    @admin.display(description="did")
    def did(self, entry: LogEntry) -> str:
        if said := entry.get_change_message():
            return said
        return {ADDITION: "Added.", DELETION: "Deleted."}.get(entry.action_flag, "Changed.")
