"""What a lease gives its holder, and what it raises when it is gone."""

import json
import uuid
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Self


class LeaseLost(Exception):
    """The slot has another fence by now: somebody else may be sending to it. Drop what you have, touch nothing."""

    code = "lease_lost"
    retryable = True


@dataclass(frozen=True, slots=True)
class Former:
    """What a slot's cache held of another holder when it changed hands: as its row said, before a request is sent."""

    holder: uuid.UUID
    kv_tokens: int
    kv_task: int | None
    kv_outline: Any
    used_at: datetime  # the slot, by its conversation

    def shown_by(self, seen: tuple[int | None, int | None]) -> bool:
        """Whether `/slots` shows it, by tokens and task; of a slot that never ran it shows nothing, restored or not."""
        return _shown(seen, self.kv_tokens, self.kv_task)


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
    # The request of a title, prewarm or park that this turn took the slot from: it may still run there. It is stopped,
    # and `/slots` quiet, before anything else is sent. `warm` then: all that it left there is this holder's own.
    preempted: uuid.UUID | None = None
    former: Former | None = None  # whose cache it holds, if it is another holder's and confirmed
    yields: bool = False  # a turn may take the slot at any moment, however long the lease has still to live

    def shown_by(self, seen: tuple[int | None, int | None]) -> bool:
        """The same of this holder's own cache."""
        return _shown(seen, self.kv_tokens, self.kv_task)

    def with_cache(
        self,
        kv_of: uuid.UUID | None,
        kv_tokens: int | None,
        kv_task: int | None,
        kv_outline: str | None,
        used_at: datetime,
    ) -> Self:
        """With what the row told of the cache: of this holder's tokens, or of another's; `kv_outline` as JSON."""
        outline = json.loads(kv_outline) if kv_outline else None
        if kv_of == self.holder:
            return replace(self, warm=True, kv_tokens=kv_tokens, kv_task=kv_task, kv_outline=outline)
        if kv_of is None or not kv_tokens:
            return self
        return replace(self, former=Former(kv_of, kv_tokens, kv_task, outline, used_at))


def _shown(seen: tuple[int | None, int | None], tokens: int | None, task: int | None) -> bool:
    return seen == (tokens, task) or (task is None and seen == (None, None))
