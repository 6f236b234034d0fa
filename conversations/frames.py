"""Conversations, messages, generations and events as clients see them: one shape for REST, SSE and the websocket."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from conversations import placeholders
from conversations.errors import ChatError
from conversations.estimate import Estimate
from conversations.history import GenerationView, MessageView
from conversations.models import Conversation, Preset
from conversations.places import Place
from conversations.rereading import Cost
from conversations.search import Hit

Frame = dict[str, Any]

PARTS = ("text", "reasoning")  # by Chunk.Part


def conversation(row: Conversation) -> Frame:
    return {
        "id": str(row.pk),
        "title": row.title,
        "model": row.model,
        "system_prompt": row.system_prompt,
        "params": row.params,
        "pinned": row.pinned,
        "archived": row.archived,
        "created_at": _time(row.created_at),
        "updated_at": _time(row.updated_at),
    }


def preset(row: Preset, mine: bool) -> Frame:
    """`mine`: whoever is told may change it."""
    return {
        "id": str(row.pk),
        "name": row.name,
        "model": row.model,
        "system_prompt": row.system_prompt,
        "params": row.params,
        "for_everybody": row.for_everybody,
        "mine": mine,
        "warnings": placeholders.warnings(row.system_prompt),
        "created_at": _time(row.created_at),
        "updated_at": _time(row.updated_at),
    }


def message(view: MessageView) -> Frame:
    """A message; `generation` is the newest that wrote it, null for a person's message."""
    return {
        "id": str(view.id),
        "parent": str(view.parent) if view.parent else None,
        "role": view.role,
        "text": view.text,
        "reasoning": view.reasoning,
        "created_at": _time(view.created_at),
        "versions": [str(version) for version in view.versions],
        "notes": view.notes,
        "generation": _state(view.generation) if view.generation else None,
    }


def with_html(messages: list[Frame], blocks: dict[UUID, list[str]]) -> list[Frame]:
    """The same messages with `html`, the blocks of an answer; null for a person's message, shown as it is."""
    return [{**shown, "html": blocks.get(UUID(shown["id"]))} for shown in messages]


def generation(view: GenerationView) -> Frame:
    return {**_state(view), "text": view.text, "reasoning": view.reasoning}


def snapshot(row: Conversation, messages: list[MessageView], earlier: bool) -> Frame:
    """Everything a client shows of a conversation; it replaces what the client had."""
    return {
        "type": "snapshot",
        "conversation": conversation(row),
        "messages": [message(view) for view in messages],
        "earlier": earlier,
    }


def created(client_id: UUID, question: MessageView, answer: MessageView) -> Frame:
    """A turn began; `client_id` lets the tab that sent it find its own."""
    where = answer.generation
    return {
        "type": "message.created",
        "conversation": str(where.conversation) if where else None,
        "client_id": str(client_id),
        "messages": [message(question), message(answer)],
    }


def queued(
    conversation_id: UUID, generation_id: UUID, place: int, reason: str | None, estimate: Estimate | None = None
) -> Frame:
    """`reason` is a sentence when it is not those before it that it waits for, else null; `estimate` is in seconds."""
    about = _about("generation.queued", conversation_id, generation_id)
    return {**about, "place": place, "reason": reason, "estimate": _range(estimate)}


def placed(place: Place) -> Frame:
    return queued(place.conversation, place.generation, place.place, place.reason, place.estimate)


def prefill(
    conversation_id: UUID, generation_id: UUID, progress: dict[str, int], cause: str | None, window_start: UUID | None
) -> Frame:
    """How far the server has read, in model tokens; `cause` says why it reads history again.

    `window_start`: the message to which the window was moved before; None: it stayed where it was.
    """
    about = _about("generation.prefill", conversation_id, generation_id)
    return {
        **about,
        "processed": progress["processed"],
        "total": progress["total"],
        "cached": progress["cache"],
        "replay_cause": cause,
        "window_start": str(window_start) if window_start else None,
    }


def delta(conversation_id: UUID, generation_id: UUID, seq: int, part: int, offset: int, text: str) -> Frame:
    """Committed text. `offset` counts the Unicode code points of that part before it."""
    about = _about("generation.delta", conversation_id, generation_id)
    return {**about, "seq": seq, "part": PARTS[part], "offset": offset, "text": text}


def html(
    conversation_id: UUID, generation_id: UUID, message_id: UUID, seq: int, keep: int, blocks: list[str], final: bool
) -> Frame:
    """An answer as HTML, up to its event `seq`: the first `keep` blocks that the client has, then `blocks`."""
    about = _about("message.html", conversation_id, generation_id)
    return {**about, "message": str(message_id), "seq": seq, "keep": keep, "blocks": blocks, "final": final}


def ended(view: GenerationView) -> Frame:
    """`generation.done`, `.cancelled`, `.failed` or `.interrupted`: a numbered event like a delta, and the last."""
    return {**_about(f"generation.{view.status}", view.conversation, view.id), **_result(view)}


def generation_snapshot(view: GenerationView) -> Frame:
    """A generation with all its text so far; it replaces what the client had of it. Only for streams of one answer."""
    return {"type": "generation.snapshot", **generation(view)}


def hit(found: Hit) -> Frame:
    """A conversation that a search found, with what to show of it in pieces, those that match marked."""
    return {
        "conversation": conversation(found.conversation),
        "title": [piece._asdict() for piece in found.title],
        "message": str(found.message) if found.message else None,
        "role": found.role,
        "created_at": _time(found.created_at) if found.created_at else None,
        "messages": found.messages,
        "excerpt": [piece._asdict() for piece in found.excerpt],
    }


def conversation_updated(row: Conversation) -> Frame:
    return {"type": "conversation.updated", "conversation": conversation(row)}


def conversation_deleted(conversation_id: UUID) -> Frame:
    return {"type": "conversation.deleted", "conversation": str(conversation_id)}


def error(problem: ChatError, **about: Any) -> Frame:
    """`{type: error, code, detail, retryable, …}`; `about` tells which frame of the client it answers."""
    return {"type": "error", **about, **error_body(problem)}


def error_body(problem: ChatError) -> Frame:
    """The body of an error, for REST and inside a frame."""
    body = problem.body()
    if isinstance(found := body.get("generation"), GenerationView):
        body["generation"] = generation(found)
    if "messages" in body:
        body["messages"] = [message(view) for view in body["messages"]]
    return body


def cost(found: Cost) -> Frame:
    return {"tokens": found.tokens, "seconds": _range(found.seconds)}


def ready(person: int, username: str, limits: Frame) -> Frame:
    """The socket is signed in. `limits` are those a client must keep."""
    return {"type": "ready", "person": {"id": person, "username": username}, "limits": limits}


def pong(gone: list[str]) -> Frame:
    """`gone` are generations the client asked about that do not exist (any more)."""
    return {"type": "pong", "gone": gone}


def _state(view: GenerationView) -> Frame:
    return {
        "id": str(view.id),
        "conversation": str(view.conversation),
        "place": view.place,
        "estimate": _range(view.estimate),
        "params": view.params,
        **_result(view),
    }


def _result(view: GenerationView) -> Frame:
    return {
        "message": str(view.message),
        "status": view.status,
        "seq": view.seq,
        "finish_reason": view.finish_reason,
        "error": view.error,
        "usage": view.usage,
        "timings": view.timings,
        "window_start": str(view.window_start) if view.window_start else None,
    }


def _range(estimate: Estimate | None) -> Frame | None:
    return estimate._asdict() if estimate else None


def _about(type_: str, conversation_id: UUID, generation_id: UUID) -> Frame:
    return {"type": type_, "conversation": str(conversation_id), "generation": str(generation_id)}


def _time(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")
