"""A conversation is read ahead, so that its next turn has only the question itself to read.

On its own warm slot that is what the template opens a question with; on one that nobody uses, all that comes before.
"""

import logging
import threading

from conversations import ahead, asking
from conversations.ahead import Coming
from conversations.outline import Decided, Outline
from conversations.worker.aside import NO_ANSWER, UNKNOWN, Aside, Figures, GaveWay, Heard, templated
from conversations.worker.handing_over import HandOver
from conversations.worker.storage import persist
from slots import leases, servers
from slots.client import LlamaServer, ServerRefused
from slots.grants import Grant
from slots.models import Slot
from slots.renewal import Renewal
from slots.watch import Watch

logger = logging.getLogger(__name__)

There = tuple[Figures, Outline]  # what the slot is known to hold as long as nothing is sent


class Prewarm(Aside):
    """Of the conversation that holds the slot, for `person`, who opened it or types there."""

    def __init__(self, grant: Grant, watch: Watch, renewal: Renewal, person: int) -> None:
        super().__init__(grant, watch, renewal)
        self.person = person
        self._warm = False  # its own cache is still there

    def _work(self, client: LlamaServer) -> None:
        self._warm = self._cache.before(client)
        coming = persist(lambda: ahead.coming(self.grant.holder))
        if self._warm:
            figures = self.grant.kv_tokens, self.grant.kv_task
            self._open(client, coming, (figures, Outline.read(self.grant.kv_outline)))
        elif coming is None:
            self._give_back(UNKNOWN, Outline())
        else:
            self._bring_back(client, coming)

    def _open(self, client: LlamaServer, coming: Coming | None, there: There) -> None:
        """Go on from the newest answer, if that is what the slot holds and no other version or window."""
        known, outline = there
        if coming and self._cache.own and outline.ends_with(coming.messages):
            self._read(client, coming, there)
        else:
            self._give_back(known, outline.opened_behind(coming.behind) if coming else outline)

    def _bring_back(self, client: LlamaServer, coming: Coming) -> None:
        hand_over = HandOver(self._held, self._server, self._cache)
        # Also beside a turn: it takes milliseconds. Reading does not, but for a file that holds all of it.
        hand_over.bring_back(client, coming.messages, self._decided(coming), threading.Event())
        try:
            self._read(client, coming, self._cache.restored)
        finally:
            hand_over.settle()

    def _read(self, client: LlamaServer, coming: Coming, there: There) -> None:
        """What is not `there`; of a file that was restored that shows whether it is of use."""
        known, outline = there
        reuse = known != UNKNOWN
        heard = None
        try:
            if not persist(self._others_are_answered):
                heard = self._read_to_question(client, coming.messages, self._decided(coming), reuse)
        except GaveWay:
            logger.info("slot=%s: %s is not read ahead: somebody sends", self.grant.slot, self.grant.holder)
        except ServerRefused as error:
            logger.info("slot=%s: %s is not read ahead: %r", self.grant.slot, self.grant.holder, error)
            outline = outline.opened_behind(coming.behind)
        figures = servers.wait_until_quiet(client, self.grant.id_slot)
        if self._cache.began:
            outline = outline.in_front(known[0] or 0)
            known, _ = self._cache.after(figures, NO_ANSWER, None)
            if heard:
                outline = self._followed(outline, coming, heard, figures[0] or 0)
            elif not (reuse or self._cache.judged):
                known = UNKNOWN  # stopped so early that what is there may still be the former holder's
        elif figures not in (known, UNKNOWN):
            known = UNKNOWN
        self._give_back(known, outline)

    def _followed(self, outline: Outline, coming: Coming, heard: Heard, held: int) -> Outline:
        *asked, last = coming.messages
        figures = asked, last, coming.asked_tokens
        if last["role"] == "system":
            figures = coming.messages, NO_ANSWER, heard.prompt_tokens
        return outline.followed_by(*figures, held, self._decided(coming)).opened_behind(coming.behind)

    def _decided(self, coming: Coming) -> Decided:
        return asking.decided(templated(coming.params), self._server.switches)

    def _began(self) -> None:
        if not self._warm:
            self.grant = persist(lambda: leases.filled(self.grant))

    def _others_are_answered(self) -> bool:
        turns = Slot.objects.filter(server=self._server.pk, phase=Slot.Phase.BUSY, work=Slot.Work.TURN)
        return turns.exists()
