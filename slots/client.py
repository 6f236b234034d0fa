"""The only speaker of HTTP to a llama-server.

How an answer is read is in `slots.streams`.
"""

import re
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import requests
import urllib3
from django.conf import settings

from slots.faults import KEY, LOADING, NOTHING, ROUTER

# What its methods raise and give is imported from here as well.
from slots.faults import ContextExceeded as ContextExceeded
from slots.faults import ServerError as ServerError
from slots.faults import ServerFailed as ServerFailed
from slots.faults import ServerRefused as ServerRefused
from slots.faults import ServerUnreachable as ServerUnreachable
from slots.faults import StreamBroken as StreamBroken
from slots.faults import StreamUnknown as StreamUnknown
from slots.reading import LARGEST_FILE, LONGEST_SENTENCE, SWITCHES, count, excerpt, parsed, plain, reason, sentence
from slots.reading import Peek as Peek
from slots.reading import Props as Props
from slots.reading import SlotState as SlotState
from slots.streams import Stream as Stream

CHAT = "/v1/chat/completions"
CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 5.0
# For a slot action, which waits for the batch that is being read of a neighbour: 4.8 s at -b 512 and 11.6 s at the
# default -b, measured on a slow processor. What would be sent instead waits as long.
ACTION_SECONDS = 15.0
PEEK_SECONDS = 2.0
LONGEST_BODY = 4 * 1024 * 1024
LONGEST_PAGE = 256 * 1024  # of a stranger's
MOST_SLOTS = 1024


@dataclass(frozen=True)
class LlamaServer:
    """One address. Every method raises ServerError or one of its kinds, and takes at most ANSWER_SECONDS to say so.

    Those that act on a slot take ACTION_SECONDS at most, unless they are given more.
    """

    url: str
    api_key: str = field(default="", repr=False)

    def props(self, *, afresh: bool = False) -> Props:
        """Who answers here; `afresh` on a connection of its own, which a load balancer may lead to another process.

        Raises ServerUnreachable while it loads, ServerFailed if it is no usable llama-server.
        """
        if not afresh:
            return self._props(_session())
        with _new_session() as session:
            return self._props(session)

    def _props(self, session: requests.Session) -> Props:
        body = self._json("GET", "/props", session=session)
        if isinstance(body, dict) and body.get("role") == "router":
            raise ServerFailed(f"{self.url} is a llama-server in router mode: it has no slots of its own.", cure=ROUTER)
        try:
            total, n_ctx = body["total_slots"], body["default_generation_settings"]["n_ctx"]
            model = _name(plain(body.get("model_alias") or ""), plain(body.get("model_path") or ""))
            boot = plain(body.get("media_marker") or "")
            switches = _switches(str(body.get("chat_template") or ""))
        except (KeyError, TypeError) as error:
            raise ServerFailed("/props is not a llama-server's: it names no slots or no context size.") from error
        if not (count(total) and count(n_ctx) and 1 <= total <= MOST_SLOTS and n_ctx >= 1):
            raise ServerFailed(f"/props names {plain(total)[:20]} slots of {plain(n_ctx)[:20]} tokens: that cannot be.")
        path, sleeping = plain(body.get("model_path") or ""), body.get("is_sleeping") is True
        return Props(boot, model, total, n_ctx, path, sleeping, switches)

    def slots(self) -> list[SlotState]:
        """Its slots, in order; answers within milliseconds also while it prefills."""
        body = self._json("GET", "/slots")
        try:
            names = ("id_task", "n_prompt_tokens", "n_ctx")
            states = [SlotState(s["id"], bool(s["is_processing"]), *(s.get(name) for name in names)) for s in body]
            if not all(count(figure) for s in states for figure in (s.id, s.task or 0, s.tokens or 0, s.n_ctx or 0)):
                raise TypeError("no figures")
            return states
        except (KeyError, TypeError, AttributeError) as error:
            raise ServerFailed("/slots is not a llama-server's list of slots.") from error

    def post(
        self,
        body: dict[str, Any],
        stream_id: uuid.UUID,
        path: str = CHAT,
        silence: float | None = None,
    ) -> Stream:
        """Start a completion under `stream_id` and return its stream from the first byte.

        `silence`: seconds without a byte that are borne, LLAMA_SILENCE by default. Returns when the slot started.
        Raises ServerUnreachable only if nothing was sent, ServerRefused or ContextExceeded on a 4xx, ServerFailed on
        a 5xx or a foreign answer, StreamBroken if the connection went away.
        """
        headers = {"X-Conversation-Id": str(stream_id)}
        response = self._open("POST", path, silence, json=body, headers=headers)
        return Stream(response, 0, stream_id, self, lambda offset: self._reopened(stream_id, offset, silence))

    def attach(self, stream_id: uuid.UUID, offset: int, silence: float | None = None) -> Stream:
        """A running or finished stream from byte `offset`. Raises StreamUnknown when that cannot be had any more."""
        return Stream(self._reopened(stream_id, offset, silence), offset, stream_id, self)

    def stop(self, stream_id: uuid.UUID) -> bool:
        """Stop a stream; False when the server knows no such stream (or has no such route)."""
        try:
            self._answer("DELETE", "/v1/stream", params={"conv_id": str(stream_id)}).close()
        except ServerRefused:
            return False
        return True

    def weights(self) -> str:
        """What `/v1/models` tells of the size of its model, which another model hardly shares; empty if nothing."""
        try:
            meta = self._json("GET", "/v1/models")["data"][0]["meta"]
            return plain(f"{meta['n_params']} {meta['size']}")[:LONGEST_SENTENCE]
        except (KeyError, TypeError, IndexError, ServerRefused):
            return ""

    def act(self, id_slot: int, action: str, filename: str) -> int:
        """Save a slot to a file of the server's, restore it from there, or erase it; how many tokens that were.

        Only on a quiet slot. Raises ServerFailed with status 501 when the server keeps no such files, ServerRefused
        when it does not do it; a slot whose restore failed is empty.
        """
        told = {"save": "n_saved", "restore": "n_restored", "erase": "n_erased"}[action]
        return self._acted(id_slot, action, filename, told)[0]

    def saved(self, id_slot: int, filename: str, patience: float | None = None) -> tuple[int, int]:
        """Save a slot as `act` does; how many tokens that were, and bytes of the file. `patience` in seconds."""
        tokens, size = self._acted(id_slot, "save", filename, "n_saved", "n_written", patience=patience)
        return tokens, size

    def _acted(
        self, id_slot: int, action: str, filename: str, tokens: str, *sizes: str, patience: float | None = None
    ) -> list[int]:
        asked: dict[str, Any] = {"params": {"action": action}, "json": {"filename": filename}}
        body = self._json("POST", f"/slots/{id_slot}", patience=patience or ACTION_SECONDS, **asked)
        said: list[Any] = [body.get(name) if isinstance(body, dict) else None for name in (tokens, *sizes)]
        if not (count(said[0]) and all(count(size, LARGEST_FILE) for size in said[1:])):
            raise ServerFailed(f"The model server does not say what it did to {action} slot {id_slot}.")
        return said

    def tokens(self, text: str, *, special: bool = True) -> list[tuple[int, str]]:
        """`text` as the server's tokenizer reads it; a piece that is no whole characters is empty.

        `special`: with control tokens where their words stand, as it reads chat messages.
        """
        body = self._json("POST", "/tokenize", json={"content": text, "parse_special": special, "with_pieces": True})
        try:
            read = [(token["id"], token["piece"]) for token in body["tokens"]]
        except (KeyError, TypeError) as error:
            raise ServerFailed("/tokenize did not answer with tokens: this is no llama-server.") from error
        return [(number, piece if isinstance(piece, str) else "") for number, piece in read]

    def told(self, path: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        """What it answers to `asked`, of routes that answer with an object at once and touch no slot."""
        body = self._json("POST", path, json=dict(asked))
        if not isinstance(body, dict):
            raise ServerFailed(f"{path} did not answer with an object: this is no llama-server.")
        return body

    def template(self) -> tuple[str, str, str]:
        """The chat template, and what begins and ends a text; empty where `/props` does not say."""
        body = self._json("GET", "/props")
        names = ("chat_template", "bos_token", "eos_token")
        template, bos, eos = (plain(body.get(name) or "") if isinstance(body, dict) else "" for name in names)
        return template, bos, eos

    def peek(self, path: str) -> Peek | None:
        """What anything at all answers at `path`; None when nothing does."""
        try:
            with self._send("GET", path, (CONNECT_SECONDS, PEEK_SECONDS)) as response:
                headers = {name.lower(): plain(value) for name, value in response.headers.items()}
                text = plain(_bounded(response, most=LONGEST_PAGE).decode(errors="replace"))
                return Peek(response.status_code, headers, text)
        except ServerError:
            return None

    def _reopened(self, stream_id: uuid.UUID, offset: int, silence: float | None) -> requests.Response:
        try:
            asked = {"conv_id": str(stream_id), "from": str(offset)}
            return self._open("GET", "/v1/stream", silence, params=asked)
        except ServerRefused as error:
            raise StreamUnknown(str(error)) from error

    def _json(self, method: str, path: str, **more: Any) -> Any:
        with self._answer(method, path, **more) as response:
            try:
                return parsed(_bounded(response))
            except ValueError as error:
                raise ServerFailed(f"{path} did not answer with JSON: this is no llama-server.") from error

    def _answer(self, method: str, path: str, patience: float | None = None, **more: Any) -> requests.Response:
        return _checked(self._send(method, path, (CONNECT_SECONDS, patience or ANSWER_SECONDS), **more))

    def _open(self, method: str, path: str, silence: float | None, **more: Any) -> requests.Response:
        patience = (CONNECT_SECONDS, silence or settings.LLAMA_SILENCE)
        response = _checked(self._send(method, path, patience, **more))
        if "text/event-stream" not in response.headers.get("Content-Type", ""):
            with response:
                start = _bounded(response, most=200)
            raise ServerFailed(f"The model server answered with something else than a stream: {excerpt(start)}.")
        return response

    def _send(self, method: str, path: str, timeout: tuple[float, float], **more: Any) -> requests.Response:
        session = more.pop("session", None) or _session()
        try:
            try:
                return self._request(session, method, path, timeout, **more)
            except requests.exceptions.ConnectionError as error:
                # It may be that the server closed the connection of an earlier request at this moment, as it does when
                # that took more than 5 s: what changes nothing, or is done already, is asked again on another one.
                if method == "POST" or _never_connected(error):
                    raise
                session.close()
                return self._request(session, method, path, timeout, **more)
        except requests.exceptions.ConnectionError as error:
            kind = ServerUnreachable if _never_connected(error) else StreamBroken
            raise kind(f"{self.url} does not answer ({reason(error)}).", cure=NOTHING) from error
        except requests.exceptions.Timeout as error:
            raise StreamBroken(f"{self.url} took the request and then said nothing for {timeout[1]:g} s.") from error
        except requests.exceptions.RequestException as error:
            raise ServerFailed(f"{self.url} cannot be talked to ({reason(error)}).") from error

    def _request(
        self, session: requests.Session, method: str, path: str, timeout: tuple[float, float], **more: Any
    ) -> requests.Response:
        headers = {**more.pop("headers", {})}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        url = f"{self.url}{path}"
        return session.request(
            method, url, timeout=timeout, stream=True, headers=headers, allow_redirects=False, **more
        )


_local = threading.local()


def _session() -> requests.Session:
    """One per thread; the environment's proxies and credentials are not for the servers beside us."""
    session: requests.Session | None = getattr(_local, "session", None)
    if session is None:
        session = _local.session = _new_session()
    return session


def _new_session() -> requests.Session:
    session = requests.Session()
    session.trust_env = False
    return session


def _never_connected(error: requests.exceptions.ConnectionError) -> bool:
    cause = error.args[0] if error.args else None
    reason = getattr(cause, "reason", cause)
    return isinstance(error, requests.exceptions.ConnectTimeout) or isinstance(
        reason, urllib3.exceptions.NewConnectionError | urllib3.exceptions.ConnectTimeoutError
    )


def _bounded(response: requests.Response, most: int = 0) -> bytes:
    """Its body, or at least `most` bytes of it; a body that trickles in is given up too."""
    body, deadline = b"", time.monotonic() + ANSWER_SECONDS
    try:
        while piece := response.raw.read1(65536):
            body += piece
            if most and len(body) >= most:
                return body
            if len(body) > LONGEST_BODY or time.monotonic() > deadline:
                raise ServerFailed("The model server's answer has no end.")
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise StreamBroken(f"The model server's answer broke off ({reason(error)}).") from error
    return body


def _checked(response: requests.Response) -> requests.Response:
    status = response.status_code
    if 200 <= status < 300:
        return response
    with response:
        about = _error_of(_bounded(response))
    said = sentence(about.get("message") or f"It answered with status {status}")
    if status == 503 and "oading" in said:
        raise ServerUnreachable("The model server is still loading its model.", status=status, cure=LOADING)
    if about.get("type") == "exceed_context_size_error":
        tokens, n_ctx = (about[name] if count(about.get(name)) else None for name in ("n_prompt_tokens", "n_ctx"))
        raise ContextExceeded(f"The conversation has {tokens} tokens; a slot holds {n_ctx}.", tokens, n_ctx)
    if status == 401:
        raise ServerRefused(
            "The model server wants an API key that it was not given: check LLAMA_SERVERS.", status=status, cure=KEY
        )
    if 400 <= status < 500:
        raise ServerRefused(f"The model server refused the request: {said}", status=status)
    raise ServerFailed(f"The model server failed with status {status}: {said}", status=status)


def _error_of(body: bytes) -> dict[str, Any]:
    try:
        error = parsed(body)["error"]
    except (ValueError, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {"message": str(error)}


def _name(alias: str, path: str) -> str:
    """What the model is called: nobody is told where its file lies, which some servers give as the alias."""
    return alias if alias and alias != path else re.split(r"[/\\]", path)[-1]


def _switches(template: str) -> tuple[str, ...]:
    return tuple(name for name in SWITCHES if re.search(rf"\b{name}\b", template))
