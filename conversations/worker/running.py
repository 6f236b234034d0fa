"""One running generation: sends the history, reads the answer, ends it. Lives in a thread of its own."""

import contextlib
import logging
import threading
import time
from typing import Any
from uuid import UUID

from django.db import connection

from chatbackend.postgresql import AWAY
from conversations import events, frames, history, text, turns, unfinished
from conversations.claims import Claim
from conversations.errors import NotFound
from conversations.fields import DEFAULT_MAX_TOKENS
from conversations.models import Chunk, Conversation, Generation
from conversations.turns import Ending, Gone
from conversations.worker.storage import persist
from conversations.worker.words import Passage
from conversations.worker.writer import Writer
from slots import foreign, leases, servers
from slots.client import (
    ContextExceeded,
    LlamaServer,
    ServerError,
    ServerFailed,
    ServerRefused,
    ServerUnreachable,
    Stream,
    StreamUnknown,
)
from slots.leases import LeaseLost
from slots.models import Server
from slots.reading import Event
from slots.renewal import Held, Renewal
from slots.watch import Watch

logger = logging.getLogger(__name__)

DEFAULT_TEMPERATURE = 0.8  # llama-server's own
STOP_PATIENCE = 5.0  # seconds from the wish to stop until the person is let go whatever the server does
REPEATED = 32  # code points: a first delta that begins with so long an answer so far repeats it (llama.cpp b11434)


class Run:
    """`thread.start()` runs it to an ending, back to the queue, or until the lease is lost."""

    def __init__(self, claim: Claim, watch: Watch, renewal: Renewal, writer: Writer) -> None:
        self.claim = claim
        self._watch, self._renewal, self._writer = watch, renewal, writer
        self._held = Held(claim.grant, self._lost)
        self._writing = writer.begin(claim, self._held, self._stop)
        self._stream: Stream | None = None
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._figures = _Figures(claim)
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
        server = persist(lambda: Server.objects.get(pk=self.claim.grant.server))
        self._passage = Passage(server, self._writer, self._writing)
        client = servers.client_of(server)
        try:
            ending = self._read(client)
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
            for event in stream.events():
                self._held.moved()
                if self._held.lost.is_set():
                    raise LeaseLost(f"generation={self.claim.generation}")
                self._take(event, stream.stream_id)
        self._passage.finish()
        return self._ending(Generation.Status.DONE)

    def _open(self, client: LlamaServer) -> Stream:
        if self.claim.grant.taken_over:
            try:
                return client.attach(self.claim.grant.stream_id, self.claim.stream_bytes)
            except StreamUnknown:
                self._clear_slot(client)
                self._start_over()
        return self._post(client)

    def _clear_slot(self, client: LlamaServer) -> None:
        """What the former worker sent may still run, or only now arrive: it is stopped before anything else is sent."""
        persist(self._held.confirm)
        client.stop(self.claim.grant.stream_id)
        servers.wait_until_quiet(client, self.claim.grant.id_slot)

    def _start_over(self) -> None:
        self.claim = persist(lambda: turns.another_attempt(self.claim))
        self._figures = _Figures(self.claim)

    def _post(self, client: LlamaServer) -> Stream:
        # Where the server parks in its RAM, what it finds again there is this conversation's own.
        reuse = self._check_slot(client) or self.claim.grant.parks_in_ram
        row = persist(lambda: Conversation.objects.filter(pk=self.claim.conversation).first())
        if row is None:
            raise Gone(f"generation={self.claim.generation}")
        messages = self._passage.sent(persist(lambda: history.prompt(row, self.claim.message)))
        self._figures.begin(messages)
        body = _body(messages, row.params, self._figures.tokens_before, self.claim.grant.id_slot, reuse)
        persist(self._held.confirm)
        return client.post(body, self.claim.grant.stream_id)

    def _check_slot(self, client: LlamaServer) -> bool:
        """Whether the cache may be used: the slot is quiet and nobody was in it since this conversation was."""
        grant = self.claim.grant
        try:
            tokens, task = servers.wait_until_quiet(client, grant.id_slot)
        except ServerError as error:
            raise ServerUnreachable(str(error)) from error  # nothing was sent: no attempt of this turn
        if grant.warm and grant.kv_task is not None and (tokens, task) != (grant.kv_tokens, grant.kv_task):
            logger.warning("slot=%s was used by somebody else (task %s, not %s)", grant.slot, task, grant.kv_task)
            persist(lambda: foreign.mismatch(grant, task))
            self._figures.replay_cause = "foreign"
            return False
        return grant.warm

    def _take(self, event: Event, stream_id: UUID) -> None:
        self._figures.take(event)
        if event.progress:
            where, generation, cause = self.claim.conversation, self.claim.generation, self._figures.replay_cause
            events.publish(where, frames.prefill(where, generation, event.progress, cause))
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

    def _finish(self, ending: Ending) -> None:
        persist(lambda: turns.finish(self.claim, ending))
        self._ended.set()
        events.publish(self.claim.conversation, *persist(lambda: ended(self.claim.generation)))
        logger.info("generation=%s %s timings=%s", self.claim.generation, ending.status, ending.timings)

    def _release(self, client: LlamaServer) -> None:
        grant = self.claim.grant
        try:
            tokens, task = servers.wait_until_quiet(client, grant.id_slot)
        except ServerError as error:
            logger.warning("slot=%s is not known to be quiet: %s", grant.slot, error)
            self._give_back_slot()
            return
        self._renewal.let_go(self._held)
        persist(lambda: leases.release(grant, tokens, task))
        persist(turns.wake)

    def _again(self, error: ServerError, refund: bool) -> None:
        """Back to the front of the queue, text kept; the server is looked at before anything else is sent there."""
        logger.warning("generation=%s attempt=%s: %s", self.claim.generation, self.claim.attempt, error)
        self._watch.doubt(self.claim.grant.server)
        self._writer.close(self._writing)
        persist(lambda: turns.requeue(self.claim, refund))

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
        return Ending(status, self._figures.finish_reason, error, self._figures.usage(), self._figures.timings())

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
        if not self._ended.wait(STOP_PATIENCE):
            self._end_by_force()

    def _stop_stream(self, stream: Stream) -> None:
        try:
            stream.stop()
        except ServerError as error:
            logger.warning("generation=%s could not be stopped: %s", self.claim.generation, error)
            stream.drop()

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


class _Figures:
    """What a generation cost: counted while it runs, corrected by what the server says at its end."""

    def __init__(self, claim: Claim) -> None:
        self.replay_cause = claim.replay_cause
        self.finish_reason = ""
        self.tokens_before = claim.tokens - (claim.stream_tokens if claim.grant.taken_over else 0)
        self._claim = claim
        self._seen = claim.tokens - self.tokens_before
        self._began = time.monotonic()
        self._ttft_ms: int | None = None
        self._so_far = ""
        self._progress: dict[str, int] = {}
        self._usage: dict[str, Any] = {}
        self._timings: dict[str, Any] = {}

    def begin(self, messages: list[dict[str, str]]) -> None:
        self._so_far = messages[-1]["content"] if messages and messages[-1]["role"] == "assistant" else ""

    def fresh(self, words: str) -> str:
        """`words` without the answer so far, which some servers repeat in the first delta of a continuation."""
        so_far, self._so_far = self._so_far, ""
        return words[len(so_far) :] if len(so_far) >= REPEATED and words.startswith(so_far) else words

    def take(self, event: Event) -> None:
        if event.text or event.reasoning:
            self._seen += 1
            if self._ttft_ms is None and not self._claim.seq:
                self._ttft_ms = self._claim.queue_ms + round((time.monotonic() - self._began) * 1000)
        self._progress = event.progress or self._progress
        self._usage = event.usage or self._usage
        self._timings = event.timings or self._timings
        self.finish_reason = event.finish_reason or self.finish_reason

    @property
    def written(self) -> bool:
        """Whether there is any of the answer, of this attempt or one before."""
        return self.tokens_before + self._seen > 0

    def usage(self) -> dict[str, Any]:
        answered = self._usage.get("completion_tokens", self._seen)
        prompt = self._usage.get("prompt_tokens", self._progress.get("total"))
        return {"prompt_tokens": prompt, "completion_tokens": self.tokens_before + answered}

    def timings(self) -> dict[str, Any]:
        total, cache = self._progress.get("total"), self._progress.get("cache")
        read = total - cache if total is not None and cache is not None else None
        return {
            "queue_ms": self._claim.queue_ms,
            "ttft_ms": self._ttft_ms,
            "prompt_n": self._timings.get("prompt_n", read),
            "cache_n": self._timings.get("cache_n", cache),
            "tokens_per_second": self._timings.get("predicted_per_second"),
            "replay_cause": self.replay_cause,
        }


def _body(
    messages: list[dict[str, str]], params: dict[str, Any], tokens_before: int, id_slot: int, reuse: bool
) -> dict[str, Any]:
    """The request; only what is listed here ever reaches a server, and it always names its slot."""
    most = params.get("max_tokens", DEFAULT_MAX_TOKENS)
    body: dict[str, Any] = {
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_progress": True,
        "id_slot": id_slot,
        "max_tokens": max(1, most - tokens_before),
        "temperature": params.get("temperature", DEFAULT_TEMPERATURE),
    }
    if not reuse:
        body["cache_prompt"] = False
    if messages and messages[-1]["role"] == "assistant":
        body["add_generation_prompt"] = False
        body["continue_final_message"] = True if messages[-1]["content"] else "reasoning_content"
    return body
