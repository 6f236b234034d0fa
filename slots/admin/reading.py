"""What the admin's lists share: nothing is asked of them that they do not show, and nothing counts millions."""

import functools
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.text import capfirst
from django.utils.timesince import timesince, timeuntil

MOST_COUNTED = 10_000  # rows; a list ends there, and says so
FILTERS_ASK = ("exact", "isnull", "gte", "lt", "id__exact", "pk__exact")

M = TypeVar("M", bound=Model)

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin
    BoundedBase = Paginator
else:

    class ModelAdmin(admin.ModelAdmin):
        """With the type parameter that the stubs give it."""

        def __class_getitem__(cls, model: object) -> type:
            return cls

    class BoundedBase(Paginator):
        def __class_getitem__(cls, model: object) -> type:
            return cls


class Bounded(BoundedBase[M]):
    """Counts no further than MOST_COUNTED, and shows no pages beyond."""

    @functools.cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return int(rows.order_by().values("pk")[:MOST_COUNTED].count())

    @property
    def cut(self) -> bool:
        """Whether there may be more than was counted."""
        return self.count >= MOST_COUNTED


class Page(ModelAdmin[M]):
    """A list and its pages, by default to be read only."""

    paginator = Bounded
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    heading: ClassVar[str] = ""  # of the list; by default what it lists
    asked_by_links: ClassVar[tuple[str, ...]] = ()  # lookups in links of ours, beside those of `list_filter`
    shown: ClassVar[tuple[str, ...]] = ()  # on the page of one, for reading

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        """Django allows every column: `?api_key__startswith=` would tell a secret letter by letter."""
        asked = set(self.asked_by_links)
        for offered in self.list_filter:
            if isinstance(offered, str):
                asked |= {f"{offered}__{way}" for way in FILTERS_ASK}
            else:
                asked.add(getattr(offered, "parameter_name", ""))
        return lookup in asked

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        title = self.heading or capfirst(self.opts.verbose_name_plural)
        return super().changelist_view(request, {"title": title, **(extra_context or {})})

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """One button to save."""
        context["show_save_and_continue"] = context["show_save_and_add_another"] = False
        return super().render_change_form(request, context, *args, **kwargs)

    def get_fields(self, request: HttpRequest, obj: M | None = None) -> Any:
        return self.shown

    def get_readonly_fields(self, request: HttpRequest, obj: M | None = None) -> Any:
        return self.shown

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: M | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: M | None = None) -> bool:
        return False

    def may(self, request: HttpRequest, permission: str) -> bool:
        """Whether this member of staff has a permission of this app's."""
        return bool(request.user.has_perm(f"{self.opts.app_label}.{permission}"))


def pill(kind: str, words: str) -> str:
    """A state in words; `kind` is its colour in admin.css: good, busy, warn, bad, or none."""
    return format_html('<span class="pill {}">{}</span>', kind, words)


def counting(count: int, one: str, more: str = "") -> str:
    """So many of a thing, in words."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def moment(at: datetime | None) -> str:
    """How long ago, or in how long; the time itself when pointed at."""
    if at is None:
        return "–"
    now = timezone.now()
    words = f"{timesince(at, now, depth=1)} ago" if at <= now else f"in {timeuntil(at, now, depth=1)}"
    if words.startswith(("0\xa0", "in 0\xa0")):
        words = "just now" if at <= now else "in a moment"
    return format_html('<time datetime="{}" title="{} UTC">{}</time>', at.isoformat(), f"{at:%Y-%m-%d %H:%M:%S}", words)
