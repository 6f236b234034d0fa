"""A preset's prompt is read alone on a slot that nobody uses, and parked for those who begin with it."""

import logging
import os.path
from collections.abc import Sequence
from uuid import UUID

from django.utils import timezone

from conversations import asking, prefixes, queue
from conversations.outline import Outline
from conversations.prefixes import Prefix
from conversations.worker.aside import NO_ANSWER, Aside, GaveWay
from conversations.worker.storage import persist
from slots import control_tokens, leases, parked, parking, servers
from slots.client import LlamaServer, ServerRefused
from slots.grants import Former, Grant
from slots.models import Server, Slot
from slots.renewal import Renewal
from slots.watch import Watch

logger = logging.getLogger(__name__)

# Two questions that begin differently: what is before them in both prompts is what every conversation begins with.
QUESTIONS = ("A", "B")


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
        alone = self._alone(client, decided)
        self._cache.asks([self._system], decided)
        body = {
            "prompt": alone, "id_slot": self.grant.id_slot, "max_tokens": 1, "temperature": 0, "stream": True,
            "return_progress": True, "cache_prompt": False,
        }  # fmt: skip
        self._send(client, body, "/v1/completions")
        tokens, task = servers.wait_until_quiet(client, self.grant.id_slot)
        if not tokens:
            return
        outline = Outline().followed_by([self._system], NO_ANSWER, tokens, tokens, decided)
        self._save(client, Former(self.grant.holder, tokens, task, outline.noted(), timezone.now()))

    def _save(self, client: LlamaServer, cache: Former) -> None:
        if learned := parking.park(client, self._held, cache, persist):
            persist(lambda: parking.learn(self._server.pk, self._server.boot, learned))

    def _alone(self, client: LlamaServer, decided: dict[str, object]) -> str:
        """What the template writes before any question."""
        known = control_tokens.of_process(client, (self._server.boot, self._server.boot_at))
        asked = [known.neutral([self._system, {"role": "user", "content": words}]) for words in QUESTIONS]
        written = [client.told("/apply-template", asking.prompt(one, decided)).get("prompt") for one in asked]
        return os.path.commonprefix([str(prompt) for prompt in written])  # noqa: RUF071  characters, no paths
