"""One running generation: sends the history, reads the answer, ends it. Lives in a thread of its own."""

import contextlib
import logging
import threading
from typing import Any
from uuid import UUID

from django.db import connection

from chatbackend.postgresql import AWAY
from conversations import asking, events, frames, history, text, turns, unfinished
from conversations.claims import Claim
from conversations.errors import NotFound
from conversations.history import Question
from conversations.models import Chunk, Generation, Message
from conversations.turns import Ending, Gone
from conversations.worker.figures import Figures
from conversations.worker.handing_over import HandOver
from conversations.worker.storage import persist
from conversations.worker.verifying import Cache
from conversations.worker.windowing import TooLong, Windowing
from conversations.worker.words import Passage
from conversations.worker.writer import Writer
from slots import leases, servers, statements
from slots.client import (
    ContextExceeded,
    LlamaServer,
    ServerError,
    ServerFailed,
    ServerRefused,
    ServerUnreachable,
    Stream,
    StreamBroken,
    StreamUnknown,
)
from slots.isolation import IsolationBroken
from slots.leases import LeaseLost
from slots.looks import Looks
from slots.models import Server
from slots.reading import Event
from slots.renewal import Held, Renewal
from slots.watch import Watch

logger = logging.getLogger(__name__)

STOP_PATIENCE = 5.0  # seconds from the wish to stop until the person is let go whatever the server does


class Stopped(Exception):
    """The wish to stop came before anything was sent."""


class Run:
    """`thread.start()` runs it to an ending, back to the queue, or until the lease is lost."""

    def __init__(
        self, claim: Claim, watch: Watch, renewal: Renewal, writer: Writer, looks: Looks | None = None
    ) -> None:
        self.claim = claim
        self._watch, self._renewal, self._writer, self._looks = watch, renewal, writer, looks
        self._held = Held(claim.grant, self._lost)
        self._writing = writer.begin(claim, self._held, self._stop)
        self._client: LlamaServer | None = None  # once something may have been sent
        self._stream: Stream | None = None
        self._asked: Question | None = None  # as read for the request that comes first
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._figures = Figures(claim)
        self._cause = claim.replay_cause
        renewal.hold(self._held)
        self.thread = threading.Thread(target=self._run, name=f"generation-{claim.generation}", daemon=True)

    def abandon(self) -> None:
        """Let go without touching anything: the worker goes away and another one takes over."""
        self._held.lose()

    def _run(self) -> None:
        about = f"generation={self.claim.generation} slot={self.claim.grant.slot} fence={self.claim.grant.fence}"
        try:
            self._answer()
        except LeaseLost:
            logger.warning("lease lost, nothing more is sent or written: %s", about)
        except Gone:
            logger.info("conversation deleted while it was answered: %s", about)
            self._give_back_slot()
        except AWAY:
            raise  # for longer than anybody waits: whoever comes next goes on from what is stored
        except Exception as fault:  # the thread's end: without this the turn would be taken over for ever
            logger.exception("a fault of ours: %s", about)
            self._after_fault(fault)
        finally:
            self._ended.set()
            self._writer.end(self._writing)
            self._renewal.let_go(self._held)
            connection.close()

    def _answer(self) -> None:
        server, self._asked = persist(self._stored)
        self._switches = server.switches
        self._cache = Cache(self.claim, server, self._looks)
        self._hand_over = HandOver(self._held, server, self._cache)
        self._passage = Passage(server, self._writer, self._writing)
        self._windowing = Windowing(self.claim, server, self._passage.sent)
        client = servers.client_of(server)
        try:
            ending = self._read(client)
        except Stopped:
            self._end(client, self._ending(Generation.Status.CANCELLED))
        except IsolationBroken as broken:
            self._leave_server(server, broken)
        except ServerUnreachable as error:
            self._again(error, refund=True)
        except ContextExceeded as error:
            self._end(client, self._failed(error, prompt_tokens=error.prompt_tokens, n_ctx=error.n_ctx))
        except ServerRefused as error:
            self._end(client, self._failed(error))
        except ServerError as error:
            if self._stopping.is_set():
                self._end(client, self._ending(Generation.Status.CANCELLED))
            elif self.claim.attempt < turns.ATTEMPTS:
                self._again(error, refund=False)
            else:
                self._end(client, self._failed(error))
        else:
            self._end(client, ending)

    def _read(self, client: LlamaServer) -> Ending:
        """Read one stream to its end; what it says goes to the writer. Raises ServerError, LeaseLost, Gone."""
        with self._open(client) as stream:
            self._stream = stream
            if self._stopping.is_set():
                self._stop_stream(stream)  # the wish came before there was anything to stop
            try:
                for event in stream.events():
                    self._held.moved()
                    if self._held.lost.is_set():
                        raise LeaseLost(f"generation={self.claim.generation}")
                    self._take(event, stream.stream_id)
            except StreamBroken:
                if not self._figures.finish_reason:  # else all of it came, and only its figures are missing
                    raise
        self._passage.finish()
        return self._ending(Generation.Status.DONE)

    def _open(self, client: LlamaServer) -> Stream:
        if self.claim.grant.taken_over:
            try:
                return client.attach(self.claim.grant.stream_id, self.claim.stream_bytes)
            except StreamUnknown as lost:
                self._clear_slot(client)
                self._start_over(lost)
        while True:
            try:
                return self._post(client)
            except TooLong:
                raise
            except ContextExceeded as refused:
                self._windowing.learn(refused)
                self.claim = self.claim.without_cache()  # the slot may show what was refused
                self._start_over(refused)

    def _clear_slot(self, client: LlamaServer) -> None:
        """What the former worker sent may still run, or only now arrive: it is stopped before anything else is sent."""
        persist(self._held.confirm)
        client.stop(self.claim.grant.stream_id)
        self._stop_preempted(client)
        servers.wait_until_quiet(client, self.claim.grant.id_slot)

    def _stop_preempted(self, client: LlamaServer) -> None:
        """What else ran on the slot yields; that it is quiet is seen before anything is sent."""
        if preempted := self.claim.grant.preempted:
            persist(self._held.confirm)
            client.stop(preempted)

    def _start_over(self, lost: ServerError) -> None:
        try:
            self.claim = persist(lambda: turns.another_attempt(self.claim))
        except turns.AttemptsSpent:
            raise lost from None
        self._figures = Figures(self.claim)
        self._cause = self.claim.replay_cause
        self._cache = self._cache.anew(self.claim)
        self._hand_over = self._hand_over.anew(self._cache)

    def _post(self, client: LlamaServer) -> Stream:
        try:
            self._stop_preempted(client)
            reuse = self._cache.before(client)
        except ServerError as error:
            raise ServerUnreachable(str(error)) from error  # nothing was sent: no attempt of this turn
        self._cause = self._cache.replay_cause
        params, asked, decided = self._question(client)
        self._cache.asks(asked, decided, trimmed=self._windowing.start is not None)
        if not reuse:
            reuse = self._hand_over.bring_back(client, asked, decided, self._stopping)
            self._cause = self._cache.replay_cause
        messages = self._passage.sent(asked)
        self._figures.begin(messages)
        before, id_slot = self._figures.tokens_before, self.claim.grant.id_slot
        body = asking.body(messages, params, before, id_slot, reuse, decided)
        persist(self._held.confirm)
        self._client = client
        if self._stopping.is_set():
            raise Stopped
        return client.post(body, self.claim.grant.stream_id)

    def _question(self, client: LlamaServer) -> tuple[dict[str, Any], list[dict[str, str]], dict[str, Any]]:
        """Parameters, messages, and what the template is told beside them."""
        asked, self._asked = self._asked or persist(self._stored)[1], None
        if asked is None:
            raise Gone(f"generation={self.claim.generation}")
        params, system_prompt, said = asked
        decided, before = asking.decided(params, self._switches), self._figures.tokens_before
        return params, self._windowing.messages(client, said, system_prompt, params, decided, before), decided

    def _stored(self) -> tuple[Server, Question | None]:
        """All in one round trip: it is in front of the first token."""
        claim = self.claim
        question = history.select_question(claim.generation, claim.conversation, claim.message)
        server, *asked = statements.batch(servers.select(claim.grant.server), *question)
        return servers.read(server), history.question(*asked)

    def _take(self, event: Event, stream_id: UUID) -> None:
        if event.progress:
            self._cache.judge(event.progress)
            self._cause = self._cache.replay_cause
            about = self.claim.conversation, self.claim.generation, event.progress, self._cause
            events.publish(about[0], frames.prefill(*about, self._windowing.start))
        self._figures.take(event)
        if event.reasoning:
            self._put(Chunk.Part.REASONING, event.reasoning, event, stream_id)
        if event.text and (fresh := self._figures.fresh(event.text)):
            self._put(Chunk.Part.TEXT, fresh, event, stream_id)

    def _put(self, part: Chunk.Part, words: str, event: Event, stream_id: UUID) -> None:
        if words := text.clean(words):
            self._passage.take(part, words, stream_id, event.end)

    def _end(self, client: LlamaServer, ending: Ending) -> None:
        self._writer.close(self._writing)
        self._finish(ending)
        self._release(client)
        read = ending.timings or {}
        if read.get("prompt_n") and read.get("prompt_ms"):
            persist(lambda: servers.noted_reading(self.claim.grant.server, read["prompt_n"], read["prompt_ms"]))

    def _finish(self, ending: Ending) -> None:
        persist(lambda: turns.finish(self.claim, ending))
        self._ended.set()
        self._tell_end()
        logger.info("generation=%s %s timings=%s", self.claim.generation, ending.status, ending.timings)
        if self._cause:
            cost = ending.timings or {}
            about = self.claim.generation, self._cause, cost.get("prompt_n"), cost.get("prompt_ms")
            logger.info("generation=%s replay cause=%s tokens=%s ms=%s", *about)

    def _tell_end(self) -> None:
        events.publish(self.claim.conversation, *persist(lambda: ended(self.claim.generation)))

    def _release(self, client: LlamaServer) -> None:
        grant = self.claim.grant
        try:
            figures = servers.wait_until_quiet(client, grant.id_slot)
        except ServerError as error:
            logger.warning("slot=%s is not known to be quiet: %s", grant.slot, error)
            self._watch.doubt(grant.server)
            self._give_back_slot()
            return
        written = persist(
            lambda: Message.objects.values_list("text", "reasoning").filter(pk=self.claim.message).first()
        )
        answer = history.answered(*(written or ("", "")))
        known, outline = self._cache.after(figures, answer, self._figures.prompt_tokens)
        self._renewal.let_go(self._held)
        persist(lambda: leases.release(grant, *known, outline.noted()))
        persist(turns.wake)
        self._hand_over.settle()

    def _again(self, error: ServerError, refund: bool) -> None:
        """Back to the front of the queue, text kept; the server is looked at before anything else is sent there."""
        logger.warning("generation=%s attempt=%s: %s", self.claim.generation, self.claim.attempt, error)
        self._watch.doubt(self.claim.grant.server)
        self._writer.close(self._writing)
        persist(lambda: turns.requeue(self.claim, refund))
        self._tell_if_stopped()

    def _leave_server(self, server: Server, broken: IsolationBroken) -> None:
        """Nothing of this answer was stored. The stream is stopped first, as long as it is ours to stop."""
        logger.error("server=%s generation=%s OUT OF SERVICE. %s", server.url, self.claim.generation, broken)
        if self._stream:
            self._stop_stream(self._stream)
        self._writer.close(self._writing)
        persist(lambda: turns.leave_server(self.claim.grant, broken))
        self._watch.doubt(server.pk)
        self._tell_if_stopped()

    def _tell_if_stopped(self) -> None:
        """What was to be stopped is not queued again."""
        if self._stopping.is_set():
            self._tell_end()

    def _after_fault(self, fault: Exception) -> None:
        """Counts like a server's failure: tried again, and after the last attempt `failed` with its text."""
        try:
            if self.claim.attempt < turns.ATTEMPTS:
                self._again(ServerError(f"{type(fault).__name__}: {fault}"), refund=False)
                return
            self._writer.close(self._writing)
            said = unfinished.problem(unfinished.INTERNAL, True, self._figures.written)
            self._finish(self._ending(Generation.Status.FAILED, said))
            self._give_back_slot()
        except (LeaseLost, Gone):
            logger.info("generation=%s is no longer ours", self.claim.generation)

    def _give_back_slot(self) -> None:
        persist(lambda: leases.revoke(self.claim.grant.slot, self.claim.grant.fence))
        persist(turns.wake)

    def _failed(self, error: ServerError, **figures: int | None) -> Ending:
        logger.warning("generation=%s ends after attempt %s: %s", self.claim.generation, self.claim.attempt, error)
        status = Generation.Status.FAILED
        if not isinstance(error, ServerRefused | ServerFailed):
            status = Generation.Status.INTERRUPTED
        said = unfinished.problem(error.code, error.retryable, self._figures.written, **figures)
        return self._ending(status, said)

    def _ending(self, status: Generation.Status, error: dict[str, Any] | None = None) -> Ending:
        timings = self._figures.timings(self._cause)
        return Ending(status, self._figures.finish_reason, error, self._figures.usage(), timings)

    def _lost(self) -> None:
        self._writing.wake()
        if stream := self._stream:
            stream.drop()

    def _stop(self) -> None:
        """Called by the writer, which must not wait for a server."""
        self._stopping.set()
        threading.Thread(target=self._stop_now, name="stop", daemon=True).start()

    def _stop_now(self) -> None:
        if stream := self._stream:
            self._stop_stream(stream)
        elif client := self._client:
            self._stop_unheard(client)
        if not self._ended.wait(STOP_PATIENCE):
            self._end_by_force()

    def _stop_stream(self, stream: Stream) -> None:
        try:
            stream.stop()
        except ServerError as error:
            logger.warning("generation=%s could not be stopped: %s", self.claim.generation, error)
            stream.drop()

    def _stop_unheard(self, client: LlamaServer) -> None:
        """The request was sent and nothing came back yet: the server may keep it waiting behind somebody else's."""
        try:
            client.stop(self.claim.grant.stream_id)
        except ServerError as error:
            logger.warning("generation=%s could not be stopped: %s", self.claim.generation, error)

    def _end_by_force(self) -> None:
        """The server does not react: the person is free at once, the slot when it says that it is quiet."""
        try:
            self._writer.close(self._writing)
            self._finish(self._ending(Generation.Status.CANCELLED))
            self._give_back_slot()
        except (LeaseLost, Gone):
            logger.info("generation=%s ended by itself while it was being stopped", self.claim.generation)
        finally:
            self._held.lose()
            connection.close()


def ended(generation: UUID) -> list[frames.Frame]:
    """The last event of a generation; empty if its conversation is deleted by now."""
    with contextlib.suppress(Generation.DoesNotExist, NotFound):
        return [frames.ended(history.generation(Generation.objects.get(pk=generation)))]
    return []
