"""What a lease gives its holder, and what it raises when it is gone."""

import uuid
from dataclasses import dataclass
from typing import Any


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
