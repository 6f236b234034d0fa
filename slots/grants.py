"""What a lease gives its holder, and what it raises when it is gone."""

import json
import uuid
from dataclasses import dataclass, replace
from typing import Any, Self


class LeaseLost(Exception):
    """The slot has another fence by now: somebody else may be sending to it. Drop what you have, touch nothing."""

    code = "lease_lost"
    retryable = True


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease that was given: proof of the right to send, as long as Postgres still shows this fence."""

    slot: int
    server: int
    id_slot: int
    fence: int
    holder: uuid.UUID
    stream_id: uuid.UUID  # of the one request that may be running under it
    warm: bool  # the cache holds this holder's tokens and nobody else's
    kv_tokens: int | None  # how many when last confirmed
    kv_task: int | None  # the request that left them
    asked_at: float  # monotonic seconds, before Postgres was asked: no later than its time to live began
    taken_over: bool = False  # `stream_id` is its former worker's and may still be running
    parks_in_ram: bool = False  # the server keeps other conversations' caches itself: `cache_prompt` stays on
    kv_outline: Any = None  # what its holder noted of the cache at its last release

    def with_cache(
        self, kv_of: uuid.UUID | None, kv_tokens: int | None, kv_task: int | None, kv_outline: str | None
    ) -> Self:
        """With what the row told of the cache, if it holds this holder's tokens; `kv_outline` as JSON."""
        if kv_of != self.holder:
            return self
        outline = json.loads(kv_outline) if kv_outline else None
        return replace(self, warm=True, kv_tokens=kv_tokens, kv_task=kv_task, kv_outline=outline)
