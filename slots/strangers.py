"""Who answers at an address where no usable llama-server does, recognised by what it says, with the cure.

What each says was read in its source or in reports of 2024 to 2026: Ollama greets on `/`; LM Studio answers 200 with
“Unexpected endpoint or method” to whatever it does not know; vLLM, SGLang, llama-swap and TabbyAPI sign their
models (`owned_by`); text-generation-webui has routes of its own under `/v1/internal/`, KoboldCpp under `/api/extra/`.
"""

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from slots.client import LlamaServer, Peek, ServerError, ServerFailed, ServerRefused, ServerUnreachable, StreamBroken

AGAIN_SECONDS = 30.0  # a stranger is not asked who it is with every look at it
INSTEAD = "It has no slots to lease: start llama-server itself with that model, and name its address here."
SLOTS_OFF = "It does not show its slots (/slots answers 501)."
SHOW_SLOTS = "Start it without --no-slots."
BEHIND = "Name the llama-server behind it: llama-swap starts each on a port of its own (`cmd` and `proxy` in its file)."
WHOLE_PATHS = "Let the proxy in front of it pass every path on, not only /v1."
OTHER = "Correct the address: it must be llama-server's own, like http://127.0.0.1:8080."

_SIGNED = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "organization_owner": "LM Studio",
    "tabbyapi": "TabbyAPI",
    "library": "Ollama",
    "ollama": "Ollama",
}


@dataclass(frozen=True)
class Stranger:
    """Its name as in “answers as …”, and what to do."""

    name: str
    cure: str = INSTEAD


class Look:
    """The pages of one address, each fetched when it is first asked for."""

    def __init__(self, client: LlamaServer) -> None:
        self._client = client
        self._pages: dict[str, Peek | None] = {}

    def page(self, path: str) -> Peek | None:
        if path not in self._pages:
            self._pages[path] = self._client.peek(path)
        return self._pages[path]

    def text(self, path: str) -> str:
        page = self.page(path)
        return page.text if page else ""

    def member(self, path: str, name: str) -> object:
        """Of the JSON object there; None if there is none."""
        page = self.page(path)
        body = page.json if page and page.status == 200 else None
        return body.get(name) if isinstance(body, dict) else None

    @cached_property
    def owners(self) -> list[str]:
        """Who signs the models of `/v1/models`, in lower case; empty where there is no such list."""
        rows = self.member("/v1/models", "data")
        named = [row.get("owned_by") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        return [str(owner).lower() for owner in named]


def explained(client: LlamaServer, error: ServerError) -> tuple[str, str]:
    """A failed look at a server in a sentence, and the cure."""
    if error.status == 501:
        return SLOTS_OFF, SHOW_SLOTS
    if error.cure or not isinstance(error, ServerFailed | ServerRefused):
        return str(error), error.cure
    found = recognised(client, str(error))
    if found is None:
        return str(error), ""
    return f"{client.url} answers as {found.name}, not as a llama-server.", found.cure


def name_of(client: LlamaServer, error: ServerError) -> str:
    """Who answers there in a word or two."""
    if isinstance(error, ServerUnreachable | StreamBroken) and not error.status:
        return "–"
    asked = not error.cure and error.status != 501 and isinstance(error, ServerFailed | ServerRefused)
    found = recognised(client, str(error)) if asked else None
    return found.name if found else "llama-server"


_known: dict[str, tuple[str, float, Stranger | None]] = {}
_lock = threading.Lock()


def recognised(client: LlamaServer, complaint: str) -> Stranger | None:
    """The stranger there; asked again only when the complaint changed, or after AGAIN_SECONDS."""
    with _lock:
        before, at, found = _known.get(client.url, ("", 0.0, None))
    if before == complaint and time.monotonic() < at + AGAIN_SECONDS:
        return found
    found = identify(client)
    with _lock:
        _known[client.url] = (complaint, time.monotonic(), found)
    return found


def identify(client: LlamaServer) -> Stranger | None:
    """None for a llama-server that has some other trouble."""
    look = Look(client)
    return next((found for recognise in _RECOGNISE if (found := recognise(look))), None)


def _lm_studio(look: Look) -> Stranger | None:
    return Stranger("LM Studio") if "Unexpected endpoint or method" in look.text("/props") else None


def _ollama(look: Look) -> Stranger | None:
    greets = look.text("/").startswith("Ollama is running")
    return Stranger("Ollama") if greets or isinstance(look.member("/api/tags", "models"), list) else None


def _llama_swap(look: Look) -> Stranger | None:
    return Stranger("llama-swap", BEHIND) if "llama-swap" in look.owners else None


def _signed(look: Look) -> Stranger | None:
    return next((Stranger(_SIGNED[owner]) for owner in look.owners if owner in _SIGNED), None)


def _text_generation_webui(look: Look) -> Stranger | None:
    has = isinstance(look.member("/v1/internal/model/info", "lora_names"), list)
    return Stranger("text-generation-webui") if has else None


def _kobold(look: Look) -> Stranger | None:
    named = str(look.member("/api/extra/version", "result") or "")
    return Stranger("KoboldCpp") if named.lower() == "koboldcpp" else None


def _llama_server(look: Look) -> Stranger | None:
    """A llama-server of which only a part can be reached; one that says so in its headers has other trouble."""
    return Stranger("a llama-server of which only /v1 is reachable", WHOLE_PATHS) if "llamacpp" in look.owners else None


def _open_ai(look: Look) -> Stranger | None:
    if isinstance(look.member("/v1/models", "data"), list):
        signed = f", whose models are owned by “{look.owners[0][:40]}”" if look.owners else ""
        return Stranger(f"a server of OpenAI's API{signed}")
    return None


def _web_page(look: Look) -> Stranger | None:
    page = look.page("/")
    if page is None or "html" not in page.headers.get("content-type", ""):
        return None
    title = re.search(r"<title[^>]*>([^<]{1,80})", page.text, re.IGNORECASE)
    return Stranger(f"a web page, “{title[1].strip()}”" if title else "a web page", OTHER)


def _anything(look: Look) -> Stranger | None:
    page = look.page("/props")
    if page is None or "llama.cpp" in page.headers.get("server", ""):
        return None
    return Stranger("something else", OTHER)


_RECOGNISE: tuple[Callable[[Look], Stranger | None], ...] = (
    _lm_studio, _ollama, _llama_swap, _signed, _text_generation_webui, _kobold, _llama_server, _open_ai, _web_page,
    _anything,
)  # fmt: skip
