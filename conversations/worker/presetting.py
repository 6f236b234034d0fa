"""A preset's prompt is read alone on a slot that nobody uses, and parked for those who begin with it."""

import logging
from collections.abc import Sequence
from uuid import UUID

from django.utils import timezone

from conversations import asking, prefixes, queue
from conversations.outline import Outline
from conversations.prefixes import Prefix
from conversations.worker.aside import NO_ANSWER, Aside, GaveWay
from conversations.worker.storage import persist
from slots import leases, parked, parking, servers
from slots.client import LlamaServer, ServerRefused
from slots.grants import Former, Grant
from slots.models import Server, Slot
from slots.renewal import Renewal
from slots.watch import Watch

logger = logging.getLogger(__name__)


def keeping(servers: Sequence[int]) -> list[Server]:
    """Those of `servers` that keep files."""
    return [row for row in Server.objects.filter(pk__in=servers, state=Server.State.READY) if parking.works(row)]


def idle(server: Server) -> bool:
    """Whether it answers nobody, while nobody waits. One that sleeps is not woken."""
    if server.asleep or queue.somebody_waits():
        return False
    return not Slot.objects.filter(server=server, phase=Slot.Phase.BUSY).exists()


def missing(server: Server, wished: Sequence[Prefix]) -> list[Prefix]:
    """Those that no file of `server` holds."""
    there = parked.holders_on(server)
    return [one for one in wished if one.holder not in there]


def keep(server: Server, wished: Sequence[UUID]) -> None:
    """Nothing is kept of presets that are gone, or were changed."""
    if gone := [one for one in parked.holders_on(server) if prefixes.is_one(one) and one not in wished]:
        parked.forget(gone)


class PresetPrompt(Aside):
    """Of the `prefix` that holds the slot."""

    def __init__(self, grant: Grant, watch: Watch, renewal: Renewal, prefix: Prefix) -> None:
        super().__init__(grant, watch, renewal)
        self._prefix = prefix
        self._system = {"role": "system", "content": prefix.system_prompt}

    def _work(self, client: LlamaServer) -> None:
        self._cache.before(client)
        if former := self._cache.former:
            self._save(client, former)
        try:
            self._park(client)
        except (GaveWay, ServerRefused) as error:
            logger.info("slot=%s: preset prompt=%s is not read: %r", self.grant.slot, self.grant.holder, error)
            servers.wait_until_quiet(client, self.grant.id_slot)
        self._renewal.let_go(self._held)
        persist(lambda: leases.give_back(self.grant))

    def _park(self, client: LlamaServer) -> None:
        decided = asking.decided(self._prefix.params, self._server.switches)
        self._read_to_question(client, [self._system], decided, reuse=False)
        tokens, task = servers.wait_until_quiet(client, self.grant.id_slot)
        if not tokens:
            return
        outline = Outline().followed_by([self._system], NO_ANSWER, tokens, tokens, decided)
        self._save(client, Former(self.grant.holder, tokens, task, outline.noted(), timezone.now()))

    def _save(self, client: LlamaServer, cache: Former) -> None:
        if learned := parking.park(client, self._held, cache, persist):
            persist(lambda: parking.learn(self._server.pk, self._server.boot, learned))
