"""Links from one admin page to another."""

from typing import Any
from uuid import UUID

from django.urls import reverse
from django.utils.html import format_html


def person(pk: int | None, name: str | None) -> str:
    """To a person's page; a dash for nobody."""
    if pk is None or name is None:
        return "–"
    return format_html('<a href="{}">{}</a>', reverse("admin:accounts_user_change", args=[pk]), name)


def conversation(pk: UUID, words: str = "") -> str:
    """To a conversation's page, by default with the end of its id: its beginning is a time and much alike."""
    address = reverse("admin:conversations_conversation_change", args=[pk])
    return format_html('<a href="{}" title="{}">{}</a>', address, pk, words or str(pk)[-8:])


def filtered(view: str, words: str, **asked: Any) -> str:
    """To a list of those where `asked` holds."""
    address = reverse(f"admin:{view}_changelist", query={key: str(value) for key, value in asked.items()})
    return format_html('<a href="{}">{}</a>', address, words)
