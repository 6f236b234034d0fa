"""Work beside turns, under a lease of its own: it yields to whoever sends, and leaves a slot as truly known as it can.

A turn of the same conversation takes the slot away (`leases.acquire`), stops what runs there and goes on with what is
in the cache: then there is nothing left to do here. Anybody else's turn on the server, or a person who goes elsewhere,
ends it by `give_way`, and its slot stays warm with what was read by then.
"""

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from django.db import connection

from chatbackend.postgresql import AWAY
from conversations import asking, turns
from conversations.outline import Decided, Messages, Outline
from conversations.parameters import THINKING
from conversations.worker.storage import persist
from conversations.worker.verifying import Cache
from slots import control_tokens, counting, leases, servers
from slots.client import CHAT, LlamaServer, ServerError, ServerFailed, ServerRefused, Stream, StreamBroken
from slots.grants import Grant, LeaseLost
from slots.isolation import IsolationBroken
from slots.reading import Event
from slots.renewal import Held, Renewal
from slots.watch import Watch

logger = logging.getLogger(__name__)

Params = Mapping[str, Any]
Figures = tuple[int | None, int | None]

COMPLETIONS = "/v1/completions"
# They begin differently, also where a tokenizer joins what a template ends with to what follows.
QUESTIONS = ("A", "1", " b", "\n.")
NO_ANSWER = {"role": "assistant", "content": ""}
UNKNOWN: Figures = (None, None)


class GaveWay(Exception):
    """Somebody sends, or nobody wants it any more."""


@dataclass(frozen=True, slots=True)
class Lease:
    """What is known of a slot's cache when no turn is behind it."""

    grant: Grant
    replay_cause: str | None = None
    stream_bytes: int = 0
    prompt_before: int | None = None


@dataclass(slots=True)
class Heard:
    """What came of one request."""

    text: str = ""
    thought: bool = False
    cut: bool = False  # it came to its limit
    cache: int = 0  # tokens that were found again
    prompt_tokens: int | None = None


def templated(params: Params) -> Params:
    """Those that change what the chat template writes: what is read must be what turns read."""
    return {THINKING.name: params[THINKING.name]} if THINKING.name in params else {}


class Aside:
    """`thread.start()` does `_work`, which a subclass has, and gives the slot back."""

    def __init__(self, grant: Grant, watch: Watch, renewal: Renewal) -> None:
        self.grant = grant
        self._watch, self._renewal = watch, renewal
        self._held = Held(grant, self._drop)
        self._client: LlamaServer | None = None  # once something may have been sent
        self._stream: Stream | None = None
        self._yields = threading.Event()
        renewal.hold(self._held)
        self.thread = threading.Thread(target=self._run, name=f"{type(self).__name__}-{grant.holder}", daemon=True)

    def abandon(self) -> None:
        """Let go without touching anything: the worker goes away."""
        self._held.lose()

    def give_way(self) -> None:
        """Stop it soon. Callable from any thread, and waits for nobody."""
        if not self._yields.is_set():
            self._yields.set()
            threading.Thread(target=self._stop, name="give-way", daemon=True).start()

    def _work(self, client: LlamaServer) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        about = f"{type(self).__name__} holder={self.grant.holder} slot={self.grant.slot} fence={self.grant.fence}"
        try:
            self._server = persist(lambda: servers.get(self.grant.server))
            self._cache = Cache(Lease(self.grant), self._server)
            self._work(servers.client_of(self._server))
        except LeaseLost:
            logger.info("its slot was wanted: %s", about)
        except IsolationBroken as broken:
            self._leave_server(broken)
        except ServerError as error:
            logger.warning("given up: %s: %s", about, error)
            self._watch.doubt(self.grant.server)
            self._give_back_slot()
        except AWAY as error:
            logger.warning("its lease expires: %s: %s", about, error)
        except Exception:  # the thread's end: without this the slot would be at work until its lease expires
            logger.exception("a fault of ours: %s", about)
            self._give_back_slot()
        finally:
            self._renewal.let_go(self._held)
            connection.close()

    # One request after the other, under the same lease.

    def _read_to_question(self, client: LlamaServer, messages: Messages, decided: Decided, reuse: bool) -> Heard:
        """Read what every prompt begins with that goes on from `messages` with a question, and no token more.

        That the question is opened belongs to it. One token is asked for, which is dropped and never enters the cache:
        so the next turn takes nothing back, which some models cannot. Raises as `_send` does.
        """
        asked = (self._neutral(client, [*messages, {"role": "user", "content": words}]) for words in QUESTIONS)
        try:
            written = [counting.written(client, asking.prompt(one, decided)) for one in asked]
        except ServerError as error:  # the slot has seen nothing of it
            raise ServerRefused(str(error)) from error
        prompt = [each[0] for each in takewhile(lambda each: len(set(each)) == 1, zip(*written, strict=False))]
        if not prompt:
            raise ServerRefused("The template writes nothing in front of a question.")
        self._cache.asks(messages, decided)
        body = {
            "prompt": prompt, "id_slot": self.grant.id_slot, "max_tokens": 1, "temperature": 0, "stream": True,
            "return_progress": True, "cache_prompt": reuse,
        }  # fmt: skip
        return self._send(client, body, COMPLETIONS)

    def _neutral(self, client: LlamaServer, messages: Messages) -> list[dict[str, str]]:
        known = control_tokens.of_process(client, (self._server.boot, self._server.boot_at))
        return known.neutral([dict(one) for one in messages])

    def _send(self, client: LlamaServer, body: dict[str, Any], path: str = CHAT) -> Heard:
        """Raises GaveWay, LeaseLost, IsolationBroken, ServerError; ServerRefused where it did not even begin."""
        self._check()
        self._client = client
        try:
            with client.post(body, self.grant.stream_id, path) as stream:
                return self._heard(stream)
        except StreamBroken:
            if self._held.lost.is_set():
                raise LeaseLost(f"slot={self.grant.slot} fence={self.grant.fence}") from None
            if self._yields.is_set():
                raise GaveWay from None
            raise
        except ServerFailed as error:
            if self._cache.began:
                raise
            # So a template is answered that raises on a prompt without a question. Whether it did more shows the slot.
            raise ServerRefused(str(error), status=error.status) from error
        finally:
            self._stream = None

    def _check(self) -> None:
        """Just before it is sent, and again once the server has begun: nobody else stops what was not there yet."""
        self._held.moved()
        if self._held.lost.is_set() or not persist(lambda: leases.renew([self.grant])):
            self._held.lose()
            raise LeaseLost(f"slot={self.grant.slot} fence={self.grant.fence}")
        if self._yields.is_set():
            raise GaveWay

    def _heard(self, stream: Stream) -> Heard:
        self._stream, self._cache.began = stream, True
        try:
            self._check()
        except (LeaseLost, GaveWay):
            stream.stop()
            raise
        heard = Heard()
        for event in stream.events():
            self._held.moved()
            if self._held.lost.is_set():
                raise LeaseLost(f"slot={self.grant.slot} fence={self.grant.fence}")
            if self._take(event, heard):
                stream.stop()
                break
        return heard

    def _take(self, event: Event, heard: Heard) -> bool:
        """Whether enough was heard."""
        if event.progress:
            self._cache.judge(event.progress)
            if heard.prompt_tokens is None:
                heard.cache, heard.prompt_tokens = event.progress["cache"], event.progress["total"]
                self._began()
        heard.text += event.text
        heard.thought = heard.thought or bool(event.reasoning)
        heard.cut = heard.cut or event.finish_reason == "length"
        return self._enough(heard)

    def _enough(self, heard: Heard) -> bool:
        return False

    def _began(self) -> None:
        """The server reads for this conversation and has told how much it found again."""

    def _anew(self, client: LlamaServer) -> None:
        """For another request. Raises LeaseLost, ServerError."""
        tokens, task = servers.wait_until_quiet(client, self.grant.id_slot)
        outline = self.grant.kv_outline
        grant = persist(lambda: leases.announce(self.grant))
        self.grant = replace(grant, kv_tokens=tokens, kv_task=task, kv_outline=outline)
        self._cache = Cache(Lease(self.grant), self._server)

    def _give_back(self, figures: Figures, outline: Outline) -> None:
        self._renewal.let_go(self._held)
        persist(lambda: leases.release(self.grant, *figures, outline.noted(), used=False))
        persist(turns.wake)

    def _give_back_slot(self) -> None:
        """Nothing is known of it: it is stopped, and then anybody's."""
        persist(lambda: leases.revoke(self.grant.slot, self.grant.fence))
        persist(turns.wake)

    def _leave_server(self, broken: IsolationBroken) -> None:
        logger.error("server=%s OUT OF SERVICE. %s", self._server.url, broken)
        self._stop()
        try:
            persist(lambda: turns.leave_server(self.grant, broken))
        except LeaseLost:
            logger.info("slot=%s is another's by now, who finds the same", self.grant.slot)
        self._watch.doubt(self._server.pk)

    def _drop(self) -> None:
        if stream := self._stream:
            stream.drop()

    def _stop(self) -> None:
        try:
            if stream := self._stream:
                stream.stop()
            elif client := self._client:
                client.stop(self.grant.stream_id)
        except ServerError as error:
            logger.warning("slot=%s: what is beside turns could not be stopped: %s", self.grant.slot, error)
            self._drop()
