"""POST /v1/chat/completions, /v1/completions: from a body to a generation in a slot, and its events to its readers."""

import asyncio
import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.scripted import sse, tokens
from tests.scripted.journal import Record
from tests.scripted.script import Answer, Script
from tests.scripted.streams import Session
from tests.scripted.tasks import Begun, Cancel, Ended, Event, Finished, Generation, Refused, Token
from tests.scripted.web import Connection, Gone, Request

if TYPE_CHECKING:
    from tests.scripted.routes import Backend

ERRORS = {
    "500": (500, "the script says so", "server_error"),
    "503": (503, "the script says so", "unavailable_error"),
    "400": (400, "the script says so", "invalid_request_error"),
}
SILENCE_SECONDS = 1.0
HTML = b"<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>"


class BadRequest(Exception):
    """400 with llama-server's sentence for it."""


def prompt_and_partial(body: Mapping[str, Any], template: tokens.Template) -> tuple[str, str]:
    """The prompt a chat body renders to, and the assistant's partial text it ends with. Raises BadRequest."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise BadRequest("'messages' is required")
    continued = body.get("continue_final_message")
    if continued and body.get("add_generation_prompt", True):
        raise BadRequest("Cannot set both add_generation_prompt and continue_final_message to true.")
    roles = [message.get("role") for message in messages]
    if roles[-2:] == ["assistant", "assistant"]:
        raise BadRequest("Cannot have 2 or more assistant messages at the end of the list.")
    try:
        render = functools.partial(tokens.render, keeps=template.keeps, thinks=template.thinks(body))
        return _rendered(render, messages, roles, continued, opens=bool(body.get("add_generation_prompt", True)))
    except ValueError as error:
        raise BadRequest(str(error)) from error


def _rendered(
    render: Callable[..., str], messages: list[dict[str, Any]], roles: list[str], continued: object, *, opens: bool
) -> tuple[str, str]:
    if roles[-1:] != ["assistant"]:
        return render(messages, generation_prompt=not continued and opens), ""
    partial = _partial(messages[-1], continued)
    # An empty partial is not continued: llama-server then leaves out the generation prompt as well.
    prompt = render(messages[:-1], generation_prompt=bool(partial) or continued == "reasoning_content")
    return prompt + partial, partial


def _partial(message: Mapping[str, Any], continued: object) -> str:
    text, thought = tokens.text_of(message), str(message.get("reasoning_content") or "")
    if continued == "reasoning_content":
        return tokens.THINK + thought if thought else ""
    return (f"{tokens.THINK}{thought}{tokens.END_THINK}" if thought and text else "") + text


def slot_number(value: object) -> int:
    """`id_slot` as llama-server reads it: numbers are cut to integers, anything else is -1 (any slot)."""
    return int(value) if isinstance(value, int | float) else -1


def generation(
    body: Mapping[str, Any], script: Script, template: tokens.Template, weights: str = ""
) -> tuple[Generation, str]:
    raw = body.get("prompt")
    prompt, partial = (raw, "") if isinstance(raw, str) else prompt_and_partial(body, template)
    if not template.thinks(body):
        script = replace(script, reasoning="")
    limit = next((body[name] for name in ("max_tokens", "max_completion_tokens", "n_predict") if name in body), None)
    run = Generation(
        id_slot=slot_number(body.get("id_slot", -1)),
        prompt=tokens.split(prompt),
        answer=Answer(
            script,
            [{"role": "user", "content": f"{raw}{weights}"}] if isinstance(raw, str) else body["messages"],
            body.get("stop") or (),
        ),
        script=script,
        said=len(tokens.split(partial)),
        max_tokens=limit if limit is None or limit >= 0 else None,
        cache_prompt=body.get("cache_prompt", True) is not False,
        ignore_eos=body.get("ignore_eos") is True,
        params={"stream": body.get("stream") is True, "generation_prompt": f"{tokens.IM_START}assistant\n{partial}"},
    )
    return run, partial


async def complete(backend: "Backend", request: Request, connection: Connection) -> None:
    try:
        asked = request.json()
        body = _worded(asked, backend.vocabulary)
        # Scripts are for what people say; a raw prompt is answered with default words.
        script = backend.scripts.reading(body["prompt"]) if "prompt" in body else backend.scripts.choose(body)
        run, partial = generation(body, script, backend.template, backend.options.weights)
    except (ValueError, BadRequest) as error:
        connection.error(400, str(error), "invalid_request_error")
        return
    stream_id = request.headers.get("x-conversation-id") if body.get("stream") is True else None
    pinned = run.id_slot % len(backend.engine.slots) if run.id_slot != -1 else -1
    record = backend.journal.arrived(asked, stream_id, pinned)
    if await refused(script, connection):
        backend.journal.ended(record, "refused")
        return
    await Delivery(backend, connection, run, record, body, partial).deliver()


def _worded(body: dict[str, Any], vocabulary: tokens.Vocabulary) -> dict[str, Any]:
    """A raw prompt may be text or the numbers of its tokens."""
    if isinstance(body.get("prompt"), list):
        return {**body, "prompt": vocabulary.text(body["prompt"])}
    return body


async def refused(script: Script, connection: Connection) -> bool:
    """Plays the faults that happen before any slot is touched; whether there was one."""
    match script.fault:
        case "no_headers":
            await connection.gone.wait()
        case "500" | "503" | "400":
            connection.error(*ERRORS[script.fault])
        case "html":
            connection.send(502, HTML, "text/html")
        case "json":
            connection.json({"detail": "this is not the stream you asked for"})
        case _:
            return False
    return True


class Delivery:
    """One generation's way out: over the connection that asked for it, and into its session if it has one."""

    def __init__(
        self, backend: "Backend", connection: Connection, run: Generation, record: Record,
        body: Mapping[str, Any], partial: str,
    ) -> None:  # fmt: skip
        self._backend, self._connection, self._run, self._record = backend, connection, run, record
        self._partial, self._streams = partial, body.get("stream") is True
        encoder: type[sse.CompletionStream] = sse.RawStream if record.raw else sse.ChatStream
        self._encoder = encoder(run, body, backend.options.alias, partial)
        self._encoder.tells = backend.behaviour.tells_cache
        self._session = self._open_session()
        self._attached = True  # the client that asked still listens
        self._headers_out = False
        self._patience: asyncio.TimerHandle | None = None
        self._sent = 0  # tokens
        self._cancelled = False
        self._outcome = "ended"

    def _open_session(self) -> Session | None:
        # A server from before resumable streams does not know the header either.
        stream_id = self._record.stream_id if self._backend.behaviour.streams_route else None
        return self._backend.streams.open(stream_id) if stream_id else None

    async def deliver(self) -> None:
        run, connection = self._run, self._connection
        connection.on_gone = run.bell.set
        if self._session is not None:
            self._session.on_stop = run.bell.set
        run.on_start = lambda slot: self._backend.journal.started(self._record, slot)
        self._backend.engine.post(run)
        try:
            await self._follow()
        finally:
            self._close()

    async def _follow(self) -> None:
        while True:
            while self._run.events:
                event = self._run.events.popleft()
                await self._pass_on(event)
                if isinstance(event, Finished | Refused | Ended):
                    return
            self._look_around()
            await self._run.bell.wait()
            self._run.bell.clear()

    def _look_around(self) -> None:
        """Notice a client that went, and a wish to stop; neither takes effect on a request that still waits."""
        gone = self._connection.gone.is_set()
        if not self._headers_out:
            if gone and self._patience is None:
                self._wait_for_silence()
            return
        abandoned = gone and (self._session is None or self._patience is not None)
        if gone:
            self._attached = False
        if abandoned or (self._session is not None and self._session.stop_asked):
            self._cancel()

    def _wait_for_silence(self) -> None:
        # llama-server looks whether the client of a waiting request is still there only after a second in which
        # nobody else got a token; beside a streaming neighbour it never does, and the request runs when its turn comes.
        loop = asyncio.get_running_loop()
        if loop.time() - self._backend.engine.last_result >= SILENCE_SECONDS:
            self._cancel()
        else:
            self._patience = loop.call_later(SILENCE_SECONDS, self._wait_for_silence)

    def _cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._backend.engine.post(Cancel(self._run))

    async def _pass_on(self, event: Event) -> None:
        self._note(event)
        if isinstance(event, Refused):
            self._connection.json({"error": event.error}, event.status)
        elif self._streams:
            await self._stream(event)
        elif isinstance(event, Finished):
            model = self._backend.options.alias
            self._connection.json(sse.whole(self._run, event.reason, model, self._partial))
        elif isinstance(event, Ended):
            self._connection.error(500, event.error or "cancelled", "server_error")

    def _note(self, event: Event) -> None:
        record, run = self._record, self._run
        record.cache_n, record.prompt_n, record.predicted_n = run.cached, len(run.prompt), len(run.generated)
        match event:
            case Token(piece) if piece != tokens.IM_END:
                record.pieces.append(piece)
            case Finished(reason):
                self._outcome = reason
            case Refused():
                self._outcome = "refused"
            case Ended(error):
                self._outcome = "cancelled" if self._cancelled else "error" if error else "ended"

    async def _stream(self, event: Event) -> None:
        script = self._run.script
        if isinstance(event, Begun):
            self._headers_out = True
            self._connection.start_stream("text/plain" if script.fault == "wrong_type" else "text/event-stream")
        if isinstance(event, Token) and self._sent == script.after:
            await self._misbehave(script.fault)
        self._sent += isinstance(event, Token)
        await self._send(self._encoder.encode(event))

    async def _misbehave(self, fault: str | None) -> None:
        if fault == "bad_json":
            await self._send(b'data: {"choices":[{"delta":{"conte\n\n')
        elif fault == "drop":
            self._connection.reset()
            self._backend.reset_readers(self._record.stream_id)
            self._attached = False

    async def _send(self, data: bytes) -> None:
        if not data:
            return
        if self._session is not None:
            self._session.feed(data)
        if self._attached:
            try:
                # The session is fed by this same loop: a client that does not read holds every other reader up.
                await self._connection.chunk(data)
            except Gone:
                self._attached = False

    def _close(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        if self._session is not None:
            self._session.finish()
        if self._headers_out and self._attached:
            self._connection.end_stream()
        self._backend.journal.ended(self._record, self._outcome)
