"""A page that says what will happen, with the one button that lets it."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.contrib.admin import AdminSite
from django.http import HttpRequest
from django.template.response import TemplateResponse


@dataclass(frozen=True, slots=True)
class Confirmation:
    title: str
    button: str
    back: str  # address to go to without doing it
    sentences: Sequence[str]
    items: Sequence[str] = ()  # what it will be done to
    hidden: Sequence[tuple[str, str]] = ()  # names and values that come back with the button


def confirm(request: HttpRequest, site: AdminSite, confirmation: Confirmation) -> TemplateResponse:
    about = {**site.each_context(request), "title": confirmation.title, "confirmation": confirmation}
    return TemplateResponse(request, "admin/confirm.html", about)
