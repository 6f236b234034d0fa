"""The routes of the scripted server, and what one process of it holds: slots, streams, vocabulary."""

import asyncio
import json
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from tests.scripted import engine as slot_engine
from tests.scripted import tokens
from tests.scripted.chat import BadRequest, complete, prompt_and_partial
from tests.scripted.engine import Engine
from tests.scripted.journal import Journal
from tests.scripted.script import Scripts, script_from
from tests.scripted.sse import FINGERPRINT
from tests.scripted.streams import OffsetLost, Streams
from tests.scripted.tasks import Slot
from tests.scripted.web import Connection, Request, dump

SlotsFault = Literal["missing", "busy", "silent", "off"]
# One path component, as llama.cpp's fs_validate_filename has it.
_BAD_FILENAME = re.compile(r'[/\\:*?"<>|\x00-\x1f\x7f]|\.\.|^\s|\s$|\.$|^$')


@dataclass
class Options:
    """How a process is started; rates are tokens per second. `slot_save_path` None: slot actions answer 501."""

    slots: int = 4
    n_ctx: int = 2048  # of one slot
    batch: int = 64
    prefill_rate: float = 10_000
    rate: float = 500
    api_key: str | None = None
    slot_save_path: Path | None = None
    alias: str = "scripted"
    model_path: str = "/models/scripted.gguf"
    weights: str = ""  # other ones of the same shape complete a raw prompt otherwise
    metrics: bool = True
    ring_bytes: int = 4 * 1024 * 1024
    cache_ram: bool = False  # llama-server's default is on: what a slot held is kept beside it and found again
    similarity: float = 0.0  # its default is 0.1 (-sps): requests that name no slot go to the one that holds most
    keeps_thoughts: bool = True  # the chat template writes the thoughts of earlier answers
    thinking_switch: bool = False  # the chat template asks for `enable_thinking`
    goes_back: bool = True  # else, as with a sliding window, a cache is lost when what was read last is taken back
    kv_unified: bool = False  # its default without -np: with `cache_ram`, idle slots are cleared when another begins


@dataclass
class Behaviour:
    """What a test may change while it runs.

    `slots_fault`: GET /slots leaves the last slot out (missing), shows all busy for ever (busy), never answers
    (silent) or answers 501 (off). `streams_route` False: a server from before resumable streams.
    `restore_is_empty`: restore says it worked, and the cache is empty (sliding-window models). `save_hangs`: it is
    never answered. `saves_fewer`: so many tokens are not in the file. `marker` False: /props from before media
    markers. `embeddings`: no completions. `role`: "router" as /props has it there. `tells_cache` False: answers
    from before they told how much was reused. `tokenizer` False: behind a proxy that lets no /tokenize through;
    "broken": it fails. `counts` False: from before it counted the tokens of a prompt. `n_ctx`: what a slot holds
    from now on, told only when something is refused.
    """

    loading: bool = False
    is_sleeping: bool = False
    slots_fault: SlotsFault | None = None
    streams_route: bool = True
    restore_is_empty: bool = False
    save_hangs: bool = False
    saves_fewer: int = 0
    marker: bool = True
    embeddings: bool = False
    role: str | None = None
    tells_cache: bool = True
    tokenizer: bool | Literal["broken"] = True
    counts: bool = True
    n_ctx: int | None = None

    def change(self, **values: Any) -> None:
        known = {field.name for field in fields(self)}
        for name, value in values.items():
            if name not in known:
                raise ValueError(f"no such behaviour: {name}; there are {', '.join(sorted(known))}")
            setattr(self, name, value)


class Backend:
    """One process of the server. Scripts, behaviour and journal belong to the test and outlive it."""

    def __init__(self, options: Options, behaviour: Behaviour, scripts: Scripts, journal: Journal) -> None:
        self.options, self.behaviour, self.scripts, self.journal = options, behaviour, scripts, journal
        self.engine = Engine(
            slots=options.slots, n_ctx=options.n_ctx, batch=options.batch,
            prefill_rate=options.prefill_rate, rate=options.rate,
            cache_ram=options.cache_ram, kv_unified=options.kv_unified,
            similarity=options.similarity, goes_back=options.goes_back,
        )  # fmt: skip
        self.engine.on_deferred = journal.waiting
        self.template = tokens.Template(options.keeps_thoughts, options.thinking_switch)
        self.streams = Streams(options.ring_bytes)
        self.vocabulary = tokens.Vocabulary()
        self._marker = f"<__media_{secrets.token_urlsafe(24)}__>"
        self._booted = time.monotonic_ns() // 1000
        self._readers: dict[str, set[Connection]] = {}
        self._routes: dict[tuple[str, str], Callable[[Request, Connection], Awaitable[None] | None]] = {
            ("GET", "/health"): self.health,
            ("GET", "/v1/health"): self.health,
            ("GET", "/props"): self.props,
            ("GET", "/v1/models"): self.models,
            ("GET", "/models"): self.models,
            ("GET", "/slots"): self.slots,
            ("GET", "/metrics"): self.metrics,
            ("POST", "/tokenize"): self.tokenize,
            ("POST", "/detokenize"): self.detokenize,
            ("POST", "/apply-template"): self.apply_template,
            ("POST", "/v1/chat/completions"): self.chat,
            ("POST", "/v1/completions"): self.chat,
            ("POST", "/v1/chat/completions/input_tokens"): self.input_tokens,
            ("GET", "/v1/stream"): self.read_stream,
            ("DELETE", "/v1/stream"): self.delete_stream,
            ("POST", "/v1/streams/lookup"): self.lookup_streams,
            ("GET", "/_control"): self.control,
            ("POST", "/_control"): self.control,
        }

    async def handle(self, request: Request, connection: Connection) -> None:
        if request.path != "/_control":
            query = "&".join(f"{name}={value}" for name, value in request.query.items())
            self.journal.calls.append(f"{request.method} {request.path}" + (f"?{query}" if query else ""))
            if self._refused(request, connection):
                return
        route = self._routes.get((request.method, request.path))
        if request.method == "POST" and request.path.startswith("/slots/"):
            route = self.slot_action
        if (
            route is None
            or ("/v1/stream" in request.path and not self.behaviour.streams_route)
            or (request.path == "/tokenize" and not self.behaviour.tokenizer)
            or (request.path.endswith("/input_tokens") and not self.behaviour.counts)
        ):
            connection.error(404, "File Not Found", "not_found_error")
            return
        try:
            answer = route(request, connection)
            if answer is not None:
                await answer
        except (BadRequest, ValueError, KeyError) as error:
            connection.error(400, str(error), "invalid_request_error")

    def _refused(self, request: Request, connection: Connection) -> bool:
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        key = self.options.api_key
        public = request.path in ("/health", "/v1/health")
        if key is not None and not public and key not in (bearer, request.headers.get("x-api-key")):
            connection.error(401, "Invalid API Key", "authentication_error")
        elif self.behaviour.loading and request.path != "/_control":
            connection.error(503, "Loading model", "unavailable_error")
        else:
            return False
        return True

    # What it is

    def health(self, request: Request, connection: Connection) -> None:
        connection.json({"status": "ok"})

    def props(self, request: Request, connection: Connection) -> None:
        options = self.options
        if self.behaviour.role == "router":
            connection.json({"role": "router", "total_slots": 0, "default_generation_settings": {"n_ctx": 0}})
            return
        marker = {"media_marker": self._marker} if self.behaviour.marker else {}
        connection.json(marker | {
            "default_generation_settings": {"params": {}, "n_ctx": options.n_ctx},
            "total_slots": options.slots, "model_alias": options.alias, "model_ftype": "scripted",
            "model_path": options.model_path, "modalities": {"vision": False, "video": False, "audio": False},
            "endpoint_slots": self.behaviour.slots_fault != "off",
            "endpoint_props": False, "endpoint_metrics": options.metrics, "ui": False,
            "chat_template": self.template.text, "chat_template_caps": {"supports_system_role": True},
            "bos_token": tokens.IM_START, "eos_token": tokens.IM_END, "build_info": FINGERPRINT,
            "is_sleeping": self.behaviour.is_sleeping,
        })  # fmt: skip

    def models(self, request: Request, connection: Connection) -> None:
        meta = {"vocab_type": 2, "n_ctx": self.options.n_ctx, "n_ctx_train": 8192, "n_params": 1, "size": 1}
        row = {"id": self.options.alias, "object": "model", "owned_by": "llamacpp", "meta": meta}
        connection.json({"object": "list", "data": [row]})

    async def slots(self, request: Request, connection: Connection) -> None:
        fault = self.behaviour.slots_fault
        rows = [slot.shown(self.options.n_ctx) for slot in self.engine.slots]
        if fault == "silent":
            await connection.gone.wait()
        elif fault == "off":
            message = "This server does not support slots endpoint. Start it with `--slots`"
            connection.error(501, message, "not_supported_error")
        elif "fail_on_no_slot" in request.query and self.engine.processing == len(rows):
            connection.error(503, "no slot available", "unavailable_error")
        elif fault == "busy":
            connection.json([row | {"is_processing": True} for row in rows])
        else:
            connection.json(rows[:-1] if fault == "missing" else rows)

    def metrics(self, request: Request, connection: Connection) -> None:
        if not self.options.metrics:
            message = "This server does not support metrics endpoint. Start it with `--metrics`"
            connection.error(501, message, "not_supported_error")
            return
        totals = self.engine.totals
        values = {
            "prompt_tokens_total": totals["prompt"], "prompt_tokens_cached_total": totals["cached"],
            "tokens_predicted_total": totals["predicted"], "n_decode_total": totals["decodes"],
            "requests_processing": self.engine.processing, "requests_deferred": len(self.engine.deferred),
        }  # fmt: skip
        lines = "".join(f"llamacpp:{name} {value}\n" for name, value in values.items())
        booted = {"Process_Start_Time_Unix": str(self._booted)}
        connection.send(200, lines.encode(), "text/plain; version=0.0.4", **booted)

    # Text

    def tokenize(self, request: Request, connection: Connection) -> None:
        if self.behaviour.tokenizer == "broken":
            connection.error(500, "Internal error", "server_error")
            return
        asked = request.json()
        pieces = tokens.split(asked["content"], special=asked.get("parse_special", True) is not False)
        ids: list[Any] = self.vocabulary.ids(pieces)
        if asked.get("with_pieces") is True:
            ids = [{"id": number, "piece": piece} for number, piece in zip(ids, pieces, strict=True)]
        connection.json({"tokens": ids})

    def detokenize(self, request: Request, connection: Connection) -> None:
        connection.json({"content": self.vocabulary.text(request.json()["tokens"])})

    def apply_template(self, request: Request, connection: Connection) -> None:
        connection.json({"prompt": prompt_and_partial(request.json(), self.template)[0]})

    def input_tokens(self, request: Request, connection: Connection) -> None:
        count = len(tokens.split(prompt_and_partial(request.json(), self.template)[0]))
        connection.json({"input_tokens": count, "object": "response.input_tokens"})

    async def chat(self, request: Request, connection: Connection) -> None:
        self.engine.n_ctx = self.behaviour.n_ctx or self.options.n_ctx
        if self.behaviour.embeddings:
            message = "This server does not support completions. Start it without `--embeddings`"
            connection.error(501, message, "not_supported_error")
            return
        await complete(self, request, connection)

    # Slots

    async def slot_action(self, request: Request, connection: Connection) -> None:
        folder = self.options.slot_save_path
        number = request.path.removeprefix("/slots/")
        if folder is None:
            message = "This server does not support slots action. Start it with `--slot-save-path`"
            connection.error(501, message, "not_supported_error")
        elif not re.fullmatch(r"-?\d+", number):
            connection.error(400, "Invalid slot ID", "invalid_request_error")
        else:
            await self._act(int(number), request, connection, folder)

    async def _act(self, slot: int, request: Request, connection: Connection, folder: Path) -> None:
        action = request.query.get("action")
        if action == "erase":
            answer = await self.engine.act(slot, slot_engine.erase)
        elif action == "save" and self.behaviour.save_hangs:
            await connection.gone.wait()
            return
        elif action == "save":
            answer = await self.engine.act(slot, self._saving(request, folder))
        elif action == "restore":
            path, n_ctx = self._file(request, folder), self.options.n_ctx
            answer = await self.engine.act(slot, slot_engine.restoring(path, n_ctx))
        else:
            raise BadRequest("Invalid action")
        if action == "restore" and self.behaviour.restore_is_empty:
            self.engine.slots[slot % self.options.slots].tokens = []
        if "error" in answer:
            raise BadRequest(str(answer["error"]))
        # The number that was asked for comes back, also where it was taken modulo the number of slots.
        connection.json(answer | {"id_slot": slot})

    def _saving(self, request: Request, folder: Path) -> Callable[[Slot], dict[str, object]]:
        return slot_engine.saving(self._file(request, folder), self.behaviour.saves_fewer)

    def _file(self, request: Request, folder: Path) -> Path:
        name = str(request.json()["filename"])
        if _BAD_FILENAME.search(name) or len(name.encode()) > 255:
            raise BadRequest("Invalid filename")
        return folder / name

    # Resumable streams

    async def read_stream(self, request: Request, connection: Connection) -> None:
        session = self.streams.get(self._stream_id(request))
        if session is None:
            connection.error(404, "File Not Found", "not_found_error")
            return
        offset = self._offset(request)
        try:
            session.check(offset)
        except OffsetLost as error:
            raise BadRequest("Stream offset is no longer available") from error
        connection.start_stream()
        readers = self._readers.setdefault(session.id, set())
        readers.add(connection)
        try:
            await self._relay(session.read(offset), connection)
        finally:
            readers.discard(connection)

    def _offset(self, request: Request) -> int:
        text = request.query.get("from", "0")
        if not re.fullmatch(r"-?\d+", text):
            raise BadRequest("Invalid 'from' offset")
        return int(text) % 2**64  # unsigned there: below zero is far beyond the end

    async def _relay(self, parts: Any, connection: Connection) -> None:
        relay = asyncio.ensure_future(self._copy(parts, connection))
        gone = asyncio.ensure_future(connection.gone.wait())
        await asyncio.wait((relay, gone), return_when=asyncio.FIRST_COMPLETED)
        for task in (relay, gone):
            task.cancel()
        results = await asyncio.gather(relay, gone, return_exceptions=True)
        if results[0] is None:
            connection.end_stream()

    async def _copy(self, parts: Any, connection: Connection) -> None:
        async for data in parts:
            await connection.chunk(data)

    def reset_readers(self, stream_id: str | None) -> None:
        for connection in list(self._readers.get(stream_id or "", ())):
            connection.reset()

    def delete_stream(self, request: Request, connection: Connection) -> None:
        self.streams.delete(self._stream_id(request))
        connection.send(204, b"", "application/json")

    def lookup_streams(self, request: Request, connection: Connection) -> None:
        connection.json(self.streams.lookup(request.json().get("conversation_ids") or []))

    def _stream_id(self, request: Request) -> str:
        if not (stream_id := request.query.get("conv_id")):
            raise BadRequest("Missing conversation id in path")
        return stream_id

    # For the tests, when the server runs in another process

    def control(self, request: Request, connection: Connection) -> None:
        """GET: the journal. POST {"script": {…}, "set": {…}, "clear": true}: each part is optional."""
        if request.method == "POST":
            wishes = request.json()
            if wishes.get("clear"):
                self.scripts.clear()
                self.journal.clear()
            if "script" in wishes:
                self.scripts.add(script_from(wishes["script"]))
            self.behaviour.change(**wishes.get("set", {}))
        connection.send(200, dump(json.loads(dump(self.journal.as_json()))), "application/json")
