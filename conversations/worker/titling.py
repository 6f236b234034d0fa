"""A title, asked of the model behind the conversation as its slot's cache holds it: nothing of that is read again.

Afterwards the slot is brought back to the end of the answer by a request of one token, in the same gap. So what it is
recorded to hold is the conversation again, and a server that cannot take back what it read last is found out at once,
and reads the conversation again now and not in front of its next answer. There no more titles are made.
"""

import logging
from typing import Any

from conversations import asking, events, frames, naming, text, titles
from conversations.models import Conversation
from conversations.outline import OPENING, Messages, Outline
from conversations.worker.aside import NO_ANSWER, UNKNOWN, Aside, GaveWay, Heard, Params, templated
from conversations.worker.storage import persist
from slots import leases, servers
from slots.client import LlamaServer, ServerRefused

logger = logging.getLogger(__name__)

MOST_TOKENS = 24
ROOM = 128  # tokens, for the request and its answer
PARAMS = {"temperature": 0, "max_tokens": MOST_TOKENS}
REQUEST = {"role": "user", "content": titles.REQUEST}


class Title(Aside):
    """Of the conversation that holds the slot."""

    def _work(self, client: LlamaServer) -> None:
        known = self.grant.kv_tokens, self.grant.kv_task
        self._held_before = self.grant.kv_tokens or 0
        self._outline = Outline.read(self.grant.kv_outline)
        if not self._cache.before(client):
            self._give_back(UNKNOWN, Outline())  # somebody else was there, or nobody knows
            return
        if (asked := persist(self._asked)) is None:
            persist(lambda: naming.give_up(self.grant.holder))
            self._give_back(known, self._outline)
            return
        try:
            self._name(client, *asked)
        except GaveWay:
            logger.info("slot=%s: the title of %s can wait", self.grant.slot, self.grant.holder)
        except ServerRefused as error:
            logger.warning("slot=%s: no title is made: %s", self.grant.slot, error)
            persist(lambda: naming.give_up(self.grant.holder))
        self._settle(client)

    def _asked(self) -> tuple[dict[str, Any], Messages] | None:
        """None where there is no title to be made, or the cache does not hold what it would be asked behind."""
        question = naming.question(self.grant.holder)
        if question is None or (self.grant.kv_tokens or 0) + ROOM > (self._server.n_ctx or 0):
            return None
        return question if self._outline.holds(question[1]) == len(question[1]) else None

    def _name(self, client: LlamaServer, params: dict[str, Any], messages: Messages) -> None:
        decided = templated(params)
        heard = self._ask(client, [*messages, REQUEST], {**PARAMS, **decided})
        self._keep(heard, " ".join(message["content"] for message in messages))
        self._anew(client)
        if not self._cache.before(client):
            return  # somebody else was there this moment: nothing may be reused, and nothing is known
        back = self._ask(client, messages, {**decided, "max_tokens": 1})
        if back.cache < heard.cache - OPENING:
            logger.warning(
                "server=%s found %s of %s tokens after a title: it makes no more of them",
                self._server.url, back.cache, heard.cache,
            )  # fmt: skip
            persist(lambda: naming.note_forgetful(self._server.pk))

    def _ask(self, client: LlamaServer, messages: Messages, params: Params) -> Heard:
        """Behind what the cache holds. Raises as `_send` does."""
        decided = asking.decided(params, self._server.switches)
        self._cache.asks(messages, decided)
        asked = self._neutral(client, messages)
        return self._send(client, asking.body(asked, params, 0, self.grant.id_slot, reuse=True, decided=decided))

    def _enough(self, heard: Heard) -> bool:
        """One that thinks first would think for long; and a title is one line."""
        return heard.thought or "\n" in heard.text.strip()

    def _keep(self, heard: Heard, about: str) -> None:
        title = None if heard.thought or heard.cut else titles.made(text.clean(heard.text), about)
        named = persist(lambda: self._stored(title))
        if named:
            events.publish_to_person(named.owner_id, frames.conversation_updated(named))
        logger.info("conversation=%s %s", self.grant.holder, "has its title" if named else "keeps its first words")

    def _stored(self, title: str | None) -> Conversation | None:
        with leases.fenced(self.grant):
            if title:
                return naming.name(self.grant.holder, title)
            naming.give_up(self.grant.holder)
            return None

    def _settle(self, client: LlamaServer) -> None:
        """Whatever came of it, what was there before is there still, unless the server forgot it."""
        figures, _ = self._cache.after(servers.wait_until_quiet(client, self.grant.id_slot), NO_ANSWER, None)
        outline = self._outline.in_front(self._held_before) if figures[0] is not None else Outline()
        self._give_back(figures, outline)
