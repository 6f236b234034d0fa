"""Conversations as JSON (docs/export.md), piece by piece: however many there are, a page of messages is in memory."""

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from json import dumps
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet
from django.utils import timezone

from conversations import errors, history
from conversations.models import Conversation, Generation, Message, Preset
from conversations.threads import in_thread

FORMAT, VERSION = "chatbackend", 1
PAGE = 100  # messages read at once
PIECE = 64 * 1024  # code points, about, that are sent at once

_MESSAGE = ("pk", "parent_id", "role", "text", "reasoning", "created_at")


async def stream(document: Iterator[str]) -> AsyncIterator[bytes]:
    """The same in larger pieces, each made on a thread that gives its connection back."""
    gathered = _gathered(document)
    step = in_thread(lambda: next(gathered, None))
    while (piece := await step()) is not None:
        yield piece.encode()


def document(rows: QuerySet[Conversation], presets: QuerySet[Preset] | None = None) -> Iterator[str]:
    """The JSON of `rows`, the oldest first; one that is deleted meanwhile is left out, or ends early."""
    head: dict[str, Any] = {"format": FORMAT, "version": VERSION, "exported_at": _time(timezone.now())}
    if presets is not None:
        head["presets"] = list(presets.order_by("pk").values("name", "model", "system_prompt", "params"))
    yield f'{_json(head)[:-1]}, "conversations": ['
    between = "\n"
    for pk in rows.order_by("pk").values_list("pk", flat=True):
        if where := rows.filter(pk=pk).first():
            yield between
            yield from _conversation(where)
            between = ",\n"
    yield "\n]}\n"


def _conversation(where: Conversation) -> Iterator[str]:
    yield f'{_json(_fields(where))[:-1]}, "messages": ['
    between = "\n"
    for message in _messages(where.pk):
        yield between + _json(message)
        between = ",\n"
    yield "\n]}"


def _fields(where: Conversation) -> dict[str, Any]:
    return {
        "id": str(where.pk),
        "title": where.title,
        "model": where.model,
        "system_prompt": where.system_prompt,
        "params": where.params,
        "pinned": where.pinned,
        "archived": where.archived,
        "created_at": _time(where.created_at),
        "updated_at": _time(where.updated_at),
        "leaf": str(where.leaf_id) if where.leaf_id else None,
        **({"imported": where.imported} if where.imported else {}),
    }


def _messages(conversation: UUID) -> Iterator[dict[str, Any]]:
    """In the order in which they were written; of one that is being written, what there is."""
    rest = Message.objects.filter(conversation=conversation).order_by("pk")
    rest = rest.annotate(brings=Q(imported__isnull=False))  # what that is may be long
    while page := list(rest.values_list("pk", flat=True)[:PAGE]):
        # Before the texts: one that ends meanwhile is in its text, or still counts as being written.
        by_message: dict[UUID, list[Generation]] = {}
        for generation in Generation.objects.filter(message__in=page).order_by("pk"):
            by_message.setdefault(generation.message_id, []).append(generation)
        for row in list(rest.filter(pk__in=page).values(*_MESSAGE, "brings")):
            yield _message(row, by_message.get(row["pk"], []))
        rest = rest.filter(pk__gt=page[-1])


def _message(row: dict[str, Any], generations: list[Generation]) -> dict[str, Any]:
    text, reasoning = row["text"], row["reasoning"]
    if live := next((one for one in generations if one.status in Generation.LIVE), None):
        text, reasoning = _so_far(live, text, reasoning)
    found = Message.objects.filter(pk=row["pk"]).values_list("imported", flat=True)
    brought = found.first() if row["brings"] else None  # nothing once it is removed, with its conversation
    return {
        "id": str(row["pk"]),
        "parent": str(row["parent_id"]) if row["parent_id"] else None,
        "role": row["role"],
        "text": text,
        "reasoning": reasoning,
        "created_at": _time(row["created_at"]),
        **({"imported": brought} if brought else {}),
        **({"generations": [_generation(one) for one in generations]} if generations else {}),
    }


def _so_far(live: Generation, text: str, reasoning: str) -> tuple[str, str]:
    try:
        view = history.generation(live)
    except errors.NotFound:
        return text, reasoning  # its conversation is being removed
    return view.text, view.reasoning


def _generation(row: Generation) -> dict[str, Any]:
    return {
        "kind": row.kind,
        "model": row.model,
        "params": row.params,
        "status": row.status,
        "finish_reason": row.finish_reason,
        "error": row.error,
        "usage": row.usage,
        "timings": row.timings,
        "queued_at": _time(row.queued_at),
        "started_at": _time(row.started_at),
        "finished_at": _time(row.finished_at),
    }


def _time(at: datetime | None) -> str | None:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z") if at else None


def _json(value: Any) -> str:
    return dumps(value, ensure_ascii=False)


def _gathered(pieces: Iterator[str]) -> Iterator[str]:
    held: list[str] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= PIECE:
            yield "".join(held)
            held, size = [], 0
    yield "".join(held)
