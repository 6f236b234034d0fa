"""Reading conversations: paths of messages, what the model is sent, and snapshots.

A snapshot is read in one statement, so text and `seq` are of one moment: before, during or after the fold of chunks.
"""

import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from conversations import errors, placeholders, places, window
from conversations.estimate import Estimate
from conversations.models import Chunk, Conversation, Generation, Message, Waiting
from conversations.window import Said
from slots import statements
from slots.statements import Rows, Step

# The newest generation of a message decides what is shown beside it.
_PATH = """
WITH RECURSIVE path AS (
  SELECT m.*, 1 AS depth FROM conversations_message m WHERE m.id = %(leaf)s AND m.conversation_id = %(conversation)s
  UNION ALL
  SELECT p.*, path.depth + 1 FROM conversations_message p JOIN path ON p.id = path.parent_id
  WHERE path.depth < %(limit)s)
SELECT path.id, path.parent_id, path.role, path.created_at,
       path.text || coalesce(k.text, ''), path.reasoning || coalesce(k.reasoning, ''),
       CASE WHEN path.parent_id IS NULL THEN first.ids ELSE beside.ids END, path.notes,
       path.window_start, g.id, g.status, coalesce(k.seq, g.seq), g.error, g.usage, g.timings, g.params, g.finish_reason
FROM path
LEFT JOIN LATERAL (
  SELECT array_agg(id ORDER BY id) AS ids FROM conversations_message WHERE parent_id = path.parent_id) beside ON true
LEFT JOIN LATERAL (
  SELECT array_agg(id ORDER BY id) AS ids FROM conversations_message
  WHERE path.parent_id IS NULL AND parent_id IS NULL AND conversation_id = %(conversation)s) first ON true
LEFT JOIN LATERAL (SELECT * FROM conversations_generation WHERE message_id = path.id ORDER BY id DESC LIMIT 1) g ON true
LEFT JOIN LATERAL (
  SELECT max(c.seq) AS seq, string_agg(c.text, '' ORDER BY c.seq) FILTER (WHERE c.part = 0) AS text,
         string_agg(c.text, '' ORDER BY c.seq) FILTER (WHERE c.part = 1) AS reasoning
  FROM conversations_chunk c WHERE c.generation_id = g.id) k ON true
ORDER BY path.depth DESC"""

# No more than a model is sent: all of it is waited for. Only the answer that is being written has chunks.
_PROMPT = """
WITH RECURSIVE path AS (
  SELECT id, parent_id, role, text, reasoning, window_start, window_context, 1 AS depth FROM conversations_message
  WHERE id = %(answer)s AND conversation_id = %(conversation)s
  UNION ALL
  SELECT p.id, p.parent_id, p.role, p.text, p.reasoning, p.window_start, p.window_context, path.depth + 1
  FROM conversations_message p JOIN path ON p.id = path.parent_id)
SELECT path.id = %(answer)s, path.role, path.text || coalesce(k.text, ''), path.reasoning || coalesce(k.reasoning, ''),
       path.id, path.window_start, path.window_context
FROM path
LEFT JOIN LATERAL (
  SELECT string_agg(c.text, '' ORDER BY c.seq) FILTER (WHERE c.part = 0) AS text,
         string_agg(c.text, '' ORDER BY c.seq) FILTER (WHERE c.part = 1) AS reasoning
  FROM conversations_generation g JOIN conversations_chunk c ON c.generation_id = g.id
  WHERE path.depth = 1 AND g.message_id = path.id) k ON true
ORDER BY path.depth DESC"""

_ASKED = """
SELECT coalesce(g.params, c.params), coalesce(g.system_prompt, c.system_prompt), c.created_at
FROM conversations_generation g JOIN conversations_conversation c ON c.id = g.conversation_id
WHERE g.id = %(generation)s"""

_PROGRESS = """
SELECT g.id, g.conversation_id, g.status, coalesce(k.seq, g.seq)
FROM conversations_generation g
LEFT JOIN LATERAL (SELECT max(seq) AS seq FROM conversations_chunk WHERE generation_id = g.id) k ON true
WHERE g.owner_id = %(owner)s AND g.id = ANY(%(generations)s)
  AND EXISTS (SELECT FROM conversations_conversation WHERE id = g.conversation_id AND deleted_at IS NULL)"""

SNAPSHOT_MESSAGES = 100
WHOLE_PATH = 100_000


@dataclass(frozen=True, slots=True)
class GenerationView:
    """A generation as clients see it; `text` and `reasoning` are those of its message."""

    id: uuid.UUID
    conversation: uuid.UUID
    message: uuid.UUID
    status: str
    seq: int
    place: int | None
    estimate: Estimate | None  # not at once: it is read for all who wait together
    text: str
    reasoning: str
    error: dict[str, Any] | None
    usage: dict[str, Any] | None
    timings: dict[str, Any] | None
    params: dict[str, Any] | None  # it is made with; None: from before that was kept
    finish_reason: str
    window_start: uuid.UUID | None  # where the window was moved to before its message; None: it stayed where it was

    @property
    def live(self) -> bool:
        return self.status in Generation.LIVE


@dataclass(frozen=True, slots=True)
class MessageView:
    """A message with what its live generation has committed so far."""

    id: uuid.UUID
    parent: uuid.UUID | None
    role: str
    text: str
    reasoning: str
    created_at: datetime
    versions: list[uuid.UUID]  # of this message, oldest first, itself among them; one if nothing was asked for again
    generation: GenerationView | None
    notes: list[str]  # what an imported one had that cannot be shown


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a generation has come."""

    id: uuid.UUID
    conversation: uuid.UUID
    status: str
    seq: int

    @property
    def live(self) -> bool:
        return self.status in Generation.LIVE


def progress(owner: int, generations: Iterable[uuid.UUID]) -> list[Progress]:
    """How far those of `generations` have come that are the owner's and still there, in one query."""
    return [Progress(*row) for row in statements.rows(_PROGRESS, {"owner": owner, "generations": list(generations)})]


def chunks_after(generation: uuid.UUID, seq: int) -> list[Chunk]:
    """What a live generation committed after its event `seq`; nothing once it has ended, when chunks are folded."""
    return list(Chunk.objects.filter(generation=generation, seq__gt=seq).order_by("seq"))


def path(conversation: uuid.UUID, leaf: uuid.UUID | None, limit: int = WHOLE_PATH) -> list[MessageView]:
    """The messages from the first (or the `limit`-th before the end) to `leaf`, oldest first."""
    if leaf is None:
        return []
    about = {"conversation": conversation, "leaf": leaf, "limit": limit}
    return [_message(conversation, row) for row in statements.rows(_PATH, about)]


def begun(question: Message, generation: Generation) -> tuple[MessageView, MessageView]:
    """A turn that was committed this moment while nobody waited: its question, and its answer to be."""
    answer = generation.message
    first = GenerationView(
        id=generation.pk, conversation=generation.conversation_id, message=answer.pk, status=Generation.Status.QUEUED,
        seq=0, place=1, estimate=None, text="", reasoning="", error=None, usage=None, timings=None,
        params=generation.params, finish_reason="", window_start=None,
    )  # fmt: skip
    return _alone(question, None), _alone(answer, first)


def _alone(message: Message, generation: GenerationView | None) -> MessageView:
    return MessageView(
        id=message.pk, parent=message.parent_id, role=message.role, text=message.text, reasoning="",
        created_at=message.created_at, versions=[message.pk], generation=generation, notes=[],
    )  # fmt: skip


def generation(found: Generation) -> GenerationView:
    """The present state of `found`, its text in the same statement. Raises NotFound when it was deleted since."""
    shown = path(found.conversation_id, found.message_id, limit=1)
    if not shown:
        raise errors.NotFound
    message = shown[0]
    newest = message.generation
    if newest is None or newest.id != found.pk:
        return _older(found, message)
    return newest


def snapshot(conversation: Conversation) -> tuple[list[MessageView], bool]:
    """The newest SNAPSHOT_MESSAGES of the active path, and whether there are older ones."""
    messages = path(conversation.pk, conversation.leaf_id, limit=SNAPSHOT_MESSAGES)
    return messages, bool(messages and messages[0].parent)


def asked(generation: uuid.UUID) -> tuple[dict[str, Any], str] | None:
    """Parameters and system prompt it was asked for with, else its conversation's; None when it is gone.

    Whoever goes on with an answer makes it as it was begun. The prompt is as a model is sent it.
    """
    return _asked(statements.rows(_ASKED, {"generation": generation}))


def said(conversation: uuid.UUID, answer: uuid.UUID) -> list[Said]:
    """The path to message `answer`, which is to be written, with what there is of it; empty where that is gone."""
    return _said(statements.rows(_PROMPT, {"conversation": conversation, "answer": answer}))


class Question(NamedTuple):
    """What a generation is to be answered by."""

    params: dict[str, Any]
    system_prompt: str
    said: list[Said]


def select_question(generation: uuid.UUID, conversation: uuid.UUID, answer: uuid.UUID) -> list[Step]:
    """Steps of `statements.batch`, whose rows `question` takes."""
    return [(_ASKED, {"generation": generation}), (_PROMPT, {"conversation": conversation, "answer": answer})]


def question(asked: Rows, said: Rows) -> Question | None:
    """`asked` and `said` in one; None when the generation is gone."""
    found = _asked(asked)
    return Question(*found, _said(said)) if found else None


def _asked(rows: Rows) -> tuple[dict[str, Any], str] | None:
    return next(((_json(params), placeholders.expanded(prompt, at)) for params, prompt, at in rows), None)


def _said(rows: Rows) -> list[Said]:
    return [Said(*row) for row in rows]


def prompt(conversation: uuid.UUID, answer: uuid.UUID, system_prompt: str = "") -> list[dict[str, str]]:
    """What the model is sent to write message `answer`, as far as is known before its tokens are counted.

    That is the system prompt as it is, and the path to the answer from where the window begins on it.
    """
    messages = said(conversation, answer)
    return sent(messages[window.begins(messages) :], system_prompt)


def sent(messages: Sequence[Said], system_prompt: str) -> list[dict[str, str]]:
    """`messages` as the model is sent them: after the system prompt, the answer so far among them.

    The same messages are sent in the same bytes with every turn, whatever came after them: what is in the cache is
    found again. So thoughts go back too, all of them always: which a model sees again is for its template to say. Those
    that write them, as for models that think between tools, find them in the cache; those that leave them out do so
    whether they are sent or not.
    """
    turns = told((one.is_answer, one.role, one.text, one.reasoning) for one in messages)
    if system_prompt:
        turns.insert(0, {"role": "system", "content": system_prompt})
    return turns


def told(messages: Iterable[tuple[bool, str, str, str]]) -> list[dict[str, str]]:
    """Messages as a model is sent them, from (whether it is the answer to be written, role, text, reasoning).

    Answers without text are left out, and the questions on both sides joined: an empty answer breaks the template of
    llama-server, and many templates raise on two questions in a row.
    """
    turns: list[dict[str, str]] = []
    for is_answer, role, text, reasoning in messages:
        if not text and not (is_answer and reasoning):
            continue
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += f"\n\n{text}"
        else:
            turns.append(answered(text, reasoning) if role == "assistant" else {"role": role, "content": text})
    return turns


def answered(text: str, reasoning: str) -> dict[str, str]:
    """An answer as a model is sent it."""
    thought = {"reasoning_content": reasoning} if reasoning else {}
    return {"role": "assistant", "content": text, **thought}


def _message(conversation: uuid.UUID, row: tuple[Any, ...]) -> MessageView:
    id_, parent, role, created_at, text, reasoning, versions, notes, _window, generation_id = row[:10]
    return MessageView(
        id=id_,
        parent=parent,
        role=role,
        text=text,
        reasoning=reasoning,
        created_at=created_at,
        versions=versions,
        generation=_generation(conversation, row) if generation_id else None,
        notes=_json(notes) or [],
    )


def _generation(conversation: uuid.UUID, row: tuple[Any, ...]) -> GenerationView:
    message, _parent, _role, _at, text, reasoning, _versions, _notes, window_start, id_, status, seq, *result = row
    error, usage, timings, params, finish_reason = result
    place = _place(id_) if status == Generation.Status.QUEUED else None
    waits = places.board.look().get(id_) if place else None
    return GenerationView(
        id_, conversation, message, status, seq, place, waits.estimate if waits else None, text, reasoning,
        _json(error), _json(usage), _json(timings), _json(params), finish_reason, window_start,
    )  # fmt: skip


def _place(generation: uuid.UUID) -> int | None:
    """In the queue; a statement of its own, because the view's plan takes longer than all else here together."""
    return Waiting.objects.filter(pk=generation).values_list("place", flat=True).first()


def _json(value: str | None) -> Any:
    """Django leaves jsonb as text in raw cursors."""
    return None if value is None else json.loads(value)


def _older(found: Generation, message: MessageView) -> GenerationView:
    return GenerationView(
        id=found.pk,
        conversation=found.conversation_id,
        message=found.message_id,
        status=found.status,
        seq=found.seq,
        place=None,
        estimate=None,
        text=message.text,
        reasoning=message.reasoning,
        error=found.error,
        usage=found.usage,
        timings=found.timings,
        params=found.params,
        finish_reason=found.finish_reason,
        window_start=None,
    )
