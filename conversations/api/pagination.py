"""Pages that do not shift while new things arrive: each names the place where the next one begins."""

import base64
import binascii
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet
from rest_framework.request import Request
from rest_framework.utils.urls import replace_query_param

from conversations import errors, frames, history, rendered, search, text
from conversations.models import Conversation

DEFAULT, MOST = 50, 100
FLAGS = {"true": True, "false": False}


def limit(request: Request) -> int:
    """`limit` of the query. Raises Invalid."""
    asked = request.query_params.get("limit", str(DEFAULT))
    if not (asked.isascii() and asked.isdecimal() and len(asked) < 6 and 1 <= int(asked) <= MOST):
        raise _invalid("limit", f"limit must be a whole number from 1 to {MOST}.")
    return int(asked)


def flag(request: Request, name: str) -> bool:
    """`name` of the query, false if left out. Raises Invalid."""
    asked = request.query_params.get(name, "false")
    if asked not in FLAGS:
        raise _invalid(name, f"{name} must be true or false.")
    return FLAGS[asked]


def conversations(request: Request, rows: QuerySet[Conversation]) -> dict[str, Any]:
    """Those that are pinned, then the others, each newest first, by what was said last; or the archived ones alone.

    Raises Invalid.
    """
    rows = rows.filter(archived=flag(request, "archived"))
    if cursor := request.query_params.get("cursor"):
        at, last, pinned = _read(cursor)
        older = Q(updated_at__lt=at) | Q(updated_at=at, pk__lt=last)
        rows = rows.filter(Q(pinned=False) | older if pinned else Q(older, pinned=False))
    size = limit(request)
    page = list(rows.order_by("-pinned", "-updated_at", "-pk")[: size + 1])
    more = len(page) > size
    return {
        "results": [frames.conversation(row) for row in page[:size]],
        "next": _address(request, _write(page[size - 1])) if more else None,
    }


def found(request: Request, person: int) -> dict[str, Any]:
    """What a search of `person` finds, newest first. Raises Invalid."""
    cursor = request.query_params.get("cursor")
    size = limit(request)
    query = text.clean(request.query_params.get("q", ""))
    page = search.search(person, query, size + 1, _read(cursor)[:2] if cursor else None)
    more = len(page) > size
    return {
        "results": [frames.hit(hit) for hit in page[:size]],
        "next": _address(request, _write(page[size - 1].conversation)) if more else None,
    }


def messages(request: Request, conversation: Conversation) -> dict[str, Any]:
    """The newest of the active path, oldest first; `next` is the page before them. Raises Invalid."""
    leaf = conversation.leaf_id
    if cursor := request.query_params.get("cursor"):
        leaf = _message(cursor)
    page = history.path(conversation.pk, leaf, limit=limit(request))
    before = page[0].parent if page else None
    results = [frames.message(view) for view in page]
    if flag(request, "html"):
        results = frames.with_html(results, rendered.of_messages(page))
    return {
        "results": results,
        "next": _address(request, str(before)) if before else None,
    }


def _address(request: Request, cursor: str) -> str:
    return replace_query_param(request.build_absolute_uri(), "cursor", cursor)


def _write(row: Conversation) -> str:
    place = f"{row.updated_at.astimezone(UTC).isoformat()} {row.pk}{' pinned' if row.pinned else ''}"
    return base64.urlsafe_b64encode(place.encode()).decode()


def _read(cursor: str) -> tuple[datetime, UUID, bool]:
    try:
        at, last, *pinned = base64.urlsafe_b64decode(cursor).decode().split(" ")
        when = datetime.fromisoformat(at)
        return when.astimezone(UTC), UUID(last), bool(pinned)
    except (ValueError, OverflowError, binascii.Error) as error:
        raise _invalid("cursor", "cursor must be one that a page's next carries.") from error


def _message(cursor: str) -> UUID:
    try:
        return UUID(cursor)
    except ValueError as error:
        raise _invalid("cursor", "cursor must be one that a page's next carries.") from error


def _invalid(field: str, sentence: str) -> errors.Invalid:
    return errors.Invalid(sentence, errors={field: [sentence]})
