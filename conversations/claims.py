"""What a worker knows of a generation that it runs: its lease, and what is stored of the answer so far."""

import uuid
from dataclasses import dataclass

from django.db import connection

from conversations.models import Generation
from slots import causes
from slots.grants import Grant

_SO_FAR = """
SELECT coalesce(max(k.seq), 0), coalesce(sum(k.tokens), 0),
       coalesce(sum(k.tokens) FILTER (WHERE k.stream_id = %(stream)s), 0),
       coalesce(max(k.stream_bytes) FILTER (WHERE k.stream_id = %(stream)s), 0),
       length(m.text) + coalesce(sum(length(k.text)) FILTER (WHERE k.part = 0), 0),
       length(m.reasoning) + coalesce(sum(length(k.text)) FILTER (WHERE k.part = 1), 0)
FROM conversations_generation g JOIN conversations_message m ON m.id = g.message_id
LEFT JOIN conversations_chunk k ON k.generation_id = g.id
WHERE g.id = %(generation)s GROUP BY m.id"""


@dataclass(frozen=True, slots=True)
class Claim:
    """A generation that this worker runs, under the lease of `grant`, from what is stored of it so far."""

    grant: Grant
    generation: uuid.UUID
    conversation: uuid.UUID
    message: uuid.UUID
    attempt: int
    seq: int  # of the last committed chunk
    tokens: int  # model tokens of the answer so far, as near as streams tell
    stream_tokens: int  # those of `grant.stream_id`
    stream_bytes: int  # of `grant.stream_id`, consumed
    text_length: int  # code points of the message so far
    reasoning_length: int
    queue_ms: int
    replay_cause: str | None
    prompt_before: int | None  # model tokens of the prompt of the conversation's newest turn before


def read(grant: Grant, generation: uuid.UUID) -> Claim:
    """What the holder of `grant` has to go on from."""
    row = Generation.objects.get(pk=generation)
    with connection.cursor() as cursor:
        cursor.execute(_SO_FAR, {"generation": generation, "stream": grant.stream_id})
        seq, tokens, stream_tokens, stream_bytes, text_length, reasoning_length = cursor.fetchone()
    before = _turn_before(row)
    waited = row.started_at - row.queued_at if row.started_at else None
    return Claim(
        grant=grant,
        generation=generation,
        conversation=row.conversation_id,
        message=row.message_id,
        attempt=row.attempt,
        seq=seq,
        tokens=tokens,
        stream_tokens=stream_tokens,
        stream_bytes=stream_bytes,
        text_length=text_length,
        reasoning_length=reasoning_length,
        queue_ms=round(waited.total_seconds() * 1000) if waited else 0,
        replay_cause=None if grant.warm or grant.taken_over else _replay_cause(row, before, seq),
        prompt_before=((before.usage or {}) if before else {}).get("prompt_tokens"),
    )


def _turn_before(row: Generation) -> Generation | None:
    before = Generation.objects.filter(conversation=row.conversation_id, started_at__isnull=False).exclude(pk=row.pk)
    return before.order_by("-pk").first()


def _replay_cause(row: Generation, before: Generation | None, seq: int) -> str | None:
    """Why history is read again; None when there is none yet."""
    if row.attempt <= 1 and before is None and not seq:
        return None
    return causes.why_cold(row.conversation_id)
