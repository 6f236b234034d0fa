"""Gives waiting generations to slots: rescues, takes over, claims, and tells the waiting their places."""

import logging
import random
import threading
from collections.abc import Callable
from uuid import UUID

from django.db import Error, connection

from conversations import events, frames, turns
from conversations.claims import Claim
from conversations.models import Waiting
from conversations.worker.running import ended
from slots import servers
from slots.watch import Watch

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5  # polling is the truth, NOTIFY a hint
MOST_TOLD = 1000


class Dispatcher:
    def __init__(self, worker: UUID, watch: Watch, start: Callable[[Claim], None]) -> None:
        self._worker, self._watch, self._start = worker, watch, start
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._told: dict[UUID, tuple[int, str | None]] = {}

    def wake(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        self._stopped.set()
        self._wake.set()

    def run(self) -> None:
        while not self._stopped.is_set():
            self._wake.wait(POLL_SECONDS * random.uniform(0.8, 1.2))  # noqa: S311  spreads workers, guards nothing
            self._wake.clear()
            try:
                self.round()
            except Error as error:
                logger.warning("the queue is out of reach: %s", error)
                connection.close()

    def round(self) -> None:
        """Do every duty once. Losing to another worker in any of them is no error."""
        for conversation, generation in turns.rescue():
            events.publish(conversation, *ended(generation))
        if reachable := self._watch.reachable:
            for claim in turns.take_overs(self._worker, reachable):
                self._begin(claim)
        if usable := servers.usable(reachable):
            while not self._stopped.is_set() and (claimed := turns.claim(self._worker, usable)):
                self._begin(claimed)
        self._tell_places()

    def _begin(self, claim: Claim) -> None:
        grant = claim.grant
        logger.info(
            "generation=%s attempt=%s slot=%s fence=%s warm=%s taken_over=%s replay_cause=%s",
            claim.generation, claim.attempt, grant.slot, grant.fence, grant.warm, grant.taken_over, claim.replay_cause,
        )  # fmt: skip
        self._start(claim)

    def _tell_places(self) -> None:
        """To each whose place or reason changed since this worker last said it; places are absolute and may be lost."""
        waiting = list(Waiting.objects.order_by("place")[:MOST_TOLD])
        reasons = {model: servers.why_none(model) for model in {one.model for one in waiting}}
        told = {one.pk: (one.place, reasons[one.model]) for one in waiting}
        for one in waiting:
            if self._told.get(one.pk) != told[one.pk]:
                events.publish(one.conversation_id, frames.queued(one.conversation_id, one.pk, *told[one.pk]))
        self._told = told
