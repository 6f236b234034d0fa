"""Servers that are no usable llama-server, as far as they are recognised: each answers by its own table of pages."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Page = tuple[int, str, Any]  # status, content type, body: text, or what is sent as JSON
JSON, PLAIN, HTML = "application/json", "text/plain; charset=utf-8", "text/html; charset=utf-8"


def models(owner: str) -> Page:
    return 200, JSON, {"object": "list", "data": [{"id": "some-model", "object": "model", "owned_by": owner}]}


NOT_FOUND: Page = (404, JSON, {"detail": "Not Found"})  # FastAPI's

# By name: its pages, and what it answers to any other path.
STRANGERS: dict[str, tuple[Mapping[str, Page], Page]] = {
    "Ollama": (
        {"/": (200, PLAIN, "Ollama is running"), "/api/version": (200, JSON, {"version": "0.9.0"}),
         "/v1/models": models("library")},
        (404, PLAIN, "404 page not found"),
    ),
    "LM Studio": (
        {"/v1/models": models("organization_owner")},
        (200, JSON, {"error": "Unexpected endpoint or method. (GET /props)"}),
    ),
    "vLLM": ({"/version": (200, JSON, {"version": "0.11.0"}), "/v1/models": models("vllm")}, NOT_FOUND),
    "llama-swap": (
        {"/": (302, HTML, ""), "/v1/models": models("llama-swap"), "/running": (200, JSON, {"running": []})},
        (404, PLAIN, "404 page not found"),
    ),
    "text-generation-webui": (
        {"/v1/models": models("user"), "/v1/internal/model/info": (200, JSON, {"model_name": "m", "lora_names": []})},
        NOT_FOUND,
    ),
    "KoboldCpp": (
        {"/": (200, HTML, "<html><title>KoboldAI Lite</title></html>"), "/v1/models": models("koboldcpp"),
         "/api/extra/version": (200, JSON, {"result": "KoboldCpp", "version": "1.98"})},
        (404, PLAIN, "Not found"),
    ),
    "a web page, “Welcome to nginx!”": (
        {"/": (200, HTML, "<!DOCTYPE html><html><head><title>Welcome to nginx!</title></head></html>")},
        (404, HTML, "<html><head><title>404 Not Found</title></head></html>"),
    ),
    "a server of OpenAI's API, whose models are owned by “openai”": ({"/v1/models": models("openai")}, NOT_FOUND),
    "a llama-server of which only /v1 is reachable": ({"/v1/models": models("llamacpp")}, (404, HTML, "no such page")),
    "something else": ({}, (404, PLAIN, "?")),
}  # fmt: skip


@contextmanager
def stranger(name: str) -> Iterator[str]:
    """One of STRANGERS, running; its address."""
    pages, otherwise = STRANGERS[name]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, kind, body = pages.get(self.path.partition("?")[0], otherwise)
            data = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
