"""A conversation is read ahead on a slot that nobody uses, so that its next turn finds it warm.

Sent is exactly what that turn begins with, and one token is asked for, which is dropped and never enters the cache: so
the turn takes nothing back, which some models cannot.
"""

import logging
import threading

from conversations import ahead, asking
from conversations.ahead import Coming
from conversations.outline import Decided, Outline
from conversations.worker.aside import NO_ANSWER, UNKNOWN, Aside, GaveWay, Heard, templated
from conversations.worker.handing_over import HandOver
from conversations.worker.storage import persist
from slots import leases, servers
from slots.client import LlamaServer, ServerRefused
from slots.grants import Grant
from slots.models import Slot
from slots.renewal import Renewal
from slots.watch import Watch

logger = logging.getLogger(__name__)


class Prewarm(Aside):
    """Of the conversation that holds the slot, for `person`, who opened it or types there."""

    def __init__(self, grant: Grant, watch: Watch, renewal: Renewal, person: int) -> None:
        super().__init__(grant, watch, renewal)
        self.person = person

    def _work(self, client: LlamaServer) -> None:
        if self._cache.before(client):
            self._give_back((self.grant.kv_tokens, self.grant.kv_task), Outline.read(self.grant.kv_outline))
            return
        coming = persist(lambda: ahead.coming(self.grant.holder))
        if coming is None:
            self._give_back(UNKNOWN, Outline())
            return
        decided = asking.decided(templated(coming.params), self._server.switches)
        hand_over = HandOver(self._held, self._server, self._cache)
        # Also beside a turn: it takes milliseconds. Reading does not, but for a file that holds all of it.
        restored = hand_over.bring_back(client, coming.messages, decided, threading.Event())
        try:
            self._read(client, coming, decided, restored=restored)
        finally:
            hand_over.settle()

    def _read(self, client: LlamaServer, coming: Coming, decided: Decided, *, restored: bool) -> None:
        """What the slot does not hold; of a file that was restored that shows whether it is of use."""
        heard = None
        try:
            if not persist(self._others_are_answered):
                params = {**templated(coming.params), "max_tokens": 1}
                heard = self._ask(client, coming.messages, params, reuse=restored)
        except (GaveWay, ServerRefused) as error:
            logger.info("slot=%s: %s is not read ahead: %r", self.grant.slot, self.grant.holder, error)
        figures = servers.wait_until_quiet(client, self.grant.id_slot)
        known, outline = self._cache.restored
        if self._cache.began:
            known, _ = self._cache.after(figures, NO_ANSWER, None)
            outline = self._outline(coming, heard, figures[0] or 0, decided) if heard else Outline()
            if not (heard or restored or self._cache.judged):
                known = UNKNOWN  # stopped so early that what is there may still be the former holder's
        elif figures not in (known, UNKNOWN):
            known = UNKNOWN
        self._give_back(known, outline)

    def _outline(self, coming: Coming, heard: Heard, held: int, decided: Decided) -> Outline:
        *asked, last = coming.messages
        if last["role"] == "system":
            return Outline().followed_by(coming.messages, NO_ANSWER, heard.prompt_tokens, held, decided)
        return Outline().followed_by(asked, last, coming.asked_tokens, held, decided)

    def _began(self) -> None:
        self.grant = persist(lambda: leases.filled(self.grant))

    def _others_are_answered(self) -> bool:
        turns = Slot.objects.filter(server=self._server.pk, phase=Slot.Phase.BUSY, work=Slot.Work.TURN)
        return turns.exists()
