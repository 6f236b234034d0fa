"""Gives waiting generations to slots: rescues, takes over, claims; and has them told their places."""

import logging
import random
import threading
import time
from collections.abc import Callable
from uuid import UUID

from django.db import Error, connection

from conversations import events, turns
from conversations.claims import Claim
from conversations.worker.running import ended
from conversations.worker.teller import Teller
from slots.watch import Watch

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5  # polling is the truth, NOTIFY a hint
TIDY_SECONDS = 2 * POLL_SECONDS  # a hint says only that somebody waits: they are not kept waiting by a look around


class Dispatcher:
    def __init__(self, worker: UUID, watch: Watch, start: Callable[[Claim], None]) -> None:
        self._worker, self._watch, self._start = worker, watch, start
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._teller = Teller(worker)
        self._tidied_at = -TIDY_SECONDS

    def wake(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        self._stopped.set()
        self._wake.set()

    def run(self) -> None:
        while not self._stopped.is_set():
            hinted = self._wake.wait(self._pause())
            self._wake.clear()
            try:
                self.round(hinted=hinted)
            except Error as error:
                logger.warning("the queue is out of reach: %s", error)
                connection.close()

    def round(self, *, hinted: bool = False) -> None:
        """Do every duty that is due. Losing to another worker in any of them is no error."""
        nobody_waits = self._claim()
        if not hinted or time.monotonic() > self._tidied_at + TIDY_SECONDS:
            self._tidied_at = time.monotonic()
            self._tidy()
        if not (hinted and nobody_waits):  # else it would only be in front of a first token
            self._teller.tell()

    def _claim(self) -> bool:
        """Whether it is known that nobody waits any more: whoever comes now sends a hint."""
        reachable = self._watch.reachable
        while reachable and not self._stopped.is_set() and (claimed := turns.claim(self._worker, reachable)):
            self._begin(claimed)
            if not claimed.others_wait:
                return True
        return False

    def _tidy(self) -> None:
        for conversation, generation in turns.rescue():
            events.publish(conversation, *ended(generation))
        if reachable := self._watch.reachable:
            for claim in turns.take_overs(self._worker, reachable):
                self._begin(claim)

    def _pause(self) -> float:
        poll = POLL_SECONDS * random.uniform(0.8, 1.2)  # noqa: S311  spreads workers, guards nothing
        due = self._teller.due_in()
        return min(poll, due) if due > 0 else poll

    def _begin(self, claim: Claim) -> None:
        grant = claim.grant
        logger.info(
            "generation=%s attempt=%s slot=%s fence=%s warm=%s taken_over=%s replay_cause=%s",
            claim.generation, claim.attempt, grant.slot, grant.fence, grant.warm, grant.taken_over, claim.replay_cause,
        )  # fmt: skip
        self._start(claim)
