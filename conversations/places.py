"""Where everybody is in the queue, why nothing moves there, and how long it takes."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from django.conf import settings

from conversations import estimate, telling
from conversations.estimate import Estimate, Waiter
from slots import servers

MOST_TOLD = 1000
FRESH = 0.5  # seconds

OWN_RUNNING = (
    "{count} of your answers {are} being written, as many as one person may have at once: "
    "this one begins when one of them ends."
)
WENT_AWAY = "The model server went away; your answer goes on when it is back."
INTERRUPTED = "Writing it was interrupted: your answer goes on before any other begins."


@dataclass(frozen=True, slots=True)
class Place:
    """What somebody who waits is told."""

    generation: UUID
    conversation: UUID
    owner: int
    place: int
    reason: str | None  # a sentence while it cannot begin for another reason than those before it
    estimate: Estimate | None
    untold: bool  # no estimate was given yet


def read() -> list[Place]:
    """Everybody who waits, MOST_TOLD at most, in the order in which turns begin.

    A handful of queries, however many wait.
    """
    waiting = estimate.waiting(MOST_TOLD)
    if not waiting:
        return []
    nobody = telling.nobody_comes()
    none = {model: servers.why_none(model) for model in {one.model for one in waiting}}
    guessed = estimate.estimates(estimate.slots_now(), waiting, estimate.recent())
    return [_place(one, nobody, none[one.model], guess) for one, guess in zip(waiting, guessed, strict=True)]


class Board:
    """The places as of FRESH seconds ago at most: one reading serves everybody whom this process tells."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read_at = -FRESH
        self._places: Mapping[UUID, Place] = {}

    def look(self) -> Mapping[UUID, Place]:
        """By generation; who asks while they are being read gets those before. A newcomer may not be there yet."""
        if time.monotonic() - self._read_at >= FRESH and self._lock.acquire(blocking=False):
            try:
                self._places = {place.generation: place for place in read()}
                self._read_at = time.monotonic()
            finally:
                self._lock.release()
        return self._places


board = Board()


def _place(one: Waiter, nobody_comes: str | None, why_none: str | None, guess: Estimate | None) -> Place:
    reason = nobody_comes or (_of_begun(why_none) if one.began else why_none)
    if reason is None and one.running >= settings.QUEUE_RUNNING_PER_PERSON:
        reason = OWN_RUNNING.format(count=one.running, are="is" if one.running == 1 else "are")
    expected = None if nobody_comes or why_none else guess
    return Place(one.id, one.conversation, one.owner, one.place, reason, expected, one.untold)


def _of_begun(why_none: str | None) -> str:
    """What whoever sees half an answer wants to know: not which server it was, but what becomes of it."""
    return WENT_AWAY if why_none else INTERRUPTED
