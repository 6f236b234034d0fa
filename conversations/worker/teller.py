"""Tells those who wait their place, why nothing moves, and how long it takes: one worker for all of them."""

import time
from uuid import UUID

from conversations import events, frames, places, queue, telling, turns
from conversations.frames import Frame

EVERY_SECONDS = 1.0


class Teller:
    """Reads everybody's place once for all, at most once in EVERY_SECONDS, and sends it to those for whom it changed.

    What it sends is absolute and may be lost: whoever hears nothing asks.
    """

    def __init__(self, worker: UUID) -> None:
        self._worker = worker
        self._told: dict[UUID, Frame] = {}
        self._next = self._next_sign = 0.0

    def due_in(self) -> float:
        """Seconds until it may read again."""
        return self._next - time.monotonic()

    def tell(self) -> None:
        """Do so if it is time and no other worker does."""
        if self.due_in() > 0:
            return
        self._next = time.monotonic() + EVERY_SECONDS
        if not queue.somebody_waits():
            self._told = {}
            self._give_sign()
        elif telling.lead(self._worker):
            self._tell_all()
        else:
            self._told = {}

    def _give_sign(self) -> None:
        if time.monotonic() >= self._next_sign:
            self._next_sign = time.monotonic() + telling.SIGN_SECONDS
            telling.lead(self._worker)

    def _tell_all(self) -> None:
        waiting = places.read()
        turns.note_estimates(waiting)
        told = {place.generation: frames.placed(place) for place in waiting}
        for place in waiting:
            if self._told.get(place.generation) != told[place.generation]:
                events.publish(place.conversation, told[place.generation])
        self._told = told
