"""What a worker knows of a generation that it runs: its lease, and what is stored of the answer so far."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from chatbackend.postgresql import AWAY
from slots import causes, leases, statements
from slots.grants import Grant

_SO_FAR = """
SELECT g.conversation_id, g.message_id, g.attempt,
       coalesce(round(extract(epoch FROM g.started_at - g.queued_at) * 1000), 0)::integer,
       coalesce(max(k.seq), 0), coalesce(sum(k.tokens), 0),
       coalesce(sum(k.tokens) FILTER (WHERE k.stream_id = {stream}), 0),
       coalesce(max(k.stream_bytes) FILTER (WHERE k.stream_id = {stream}), 0),
       length(m.text) + coalesce(sum(length(k.text)) FILTER (WHERE k.part = 0), 0),
       length(m.reasoning) + coalesce(sum(length(k.text)) FILTER (WHERE k.part = 1), 0),
       before.id IS NOT NULL, (before.usage->>'prompt_tokens')::integer
FROM {generations} g JOIN conversations_message m ON m.id = g.message_id
LEFT JOIN conversations_chunk k ON k.generation_id = g.id
LEFT JOIN LATERAL (
  SELECT b.id, b.usage FROM conversations_generation b
  WHERE b.conversation_id = g.conversation_id AND b.started_at IS NOT NULL AND b.id <> g.id AND NOT b.imported
  ORDER BY b.id DESC LIMIT 1) before ON true
WHERE g.id = {generation}
GROUP BY g.id, g.conversation_id, g.message_id, g.attempt, g.started_at, g.queued_at, m.id, before.id, before.usage"""
_GRANTED = {"generation": "%(generation)s", "stream": "%(stream)s"}
_READ = _SO_FAR.format(generations="conversations_generation", **_GRANTED)
_BEGUN = _SO_FAR.format(generations="begun", **_GRANTED)
_ALONE = """
SELECT head.holder, leased.*, head.id, so_far.* FROM head CROSS JOIN leased CROSS JOIN ({so_far}) so_far""".format(
    so_far=_SO_FAR.format(generations="begun", generation="(SELECT id FROM head)", stream="%(stream_id)s")
)


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
    others_wait: bool = True  # or may do so

    def without_cache(self) -> Self:
        """The same where it is not known any more what the slot shows."""
        return replace(self, grant=replace(self.grant, kv_tokens=None, kv_task=None, preempted=None))


def read(grant: Grant, generation: uuid.UUID) -> Claim:
    """What the holder of `grant` has to go on from. One query: everybody else's claim waits for it."""
    (row,) = statements.rows(_READ, {"generation": generation, "stream": grant.stream_id})
    return _claim(grant, generation, row)


def begin(grant: Grant, generation: uuid.UUID, moved: str) -> Claim | None:
    """The same in the statement that begins it: its beginning is `moved`, the CTE `begun`; None if nothing did."""
    about: dict[str, Any] = {
        "generation": generation,
        "stream": grant.stream_id,
        "fence": grant.fence,
        "server": grant.server,
    }
    row = statements.row(f"WITH {moved} {_BEGUN}", about)
    return _claim(grant, generation, row) if row else None


def begin_alone(worker: uuid.UUID, servers: Sequence[int], head: str, moved: str, **about: Any) -> Claim | None:
    """The same with its lease too, where the CTE `head (id, holder, model)` finds one that keeps an idle slot."""
    found = leases.acquire_by(head, f"{moved} {_ALONE}", worker, servers, **about)
    if found is None:
        return None
    grant, generation, *row = found
    try:
        claim = _claim(grant, generation, tuple(row))
    except AWAY:  # it is ours by now, and goes on
        claim = _claim(grant, generation, tuple(row), cause="cache_lost")
    return replace(claim, others_wait=False)


def _claim(grant: Grant, generation: uuid.UUID, row: tuple[Any, ...], cause: str | None = None) -> Claim:
    conversation, message, attempt, queue_ms, seq, tokens, *stream, text_length, reasoning_length, before, prompt = row
    began = attempt > 1 or before or seq > 0
    cold = began and not (grant.warm or grant.taken_over)
    return Claim(
        grant=grant,
        generation=generation,
        conversation=conversation,
        message=message,
        attempt=attempt,
        seq=seq,
        tokens=tokens,
        stream_tokens=stream[0],
        stream_bytes=stream[1],
        text_length=text_length,
        reasoning_length=reasoning_length,
        queue_ms=queue_ms,
        replay_cause=(cause or causes.why_cold(conversation, grant.server)) if cold else None,
        prompt_before=prompt,
    )
