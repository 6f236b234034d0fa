"""Talking to a llama-server the plain way, for tests about llama-servers: no leases, no checks, no retries."""

import json
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import requests

T = TypeVar("T")
COMMON = ("river", "garden", "bread", "winter", "music", "paper", "green", "house", "water", "light")
SYSTEM = {"role": "system", "content": "Be brief."}


@dataclass
class Answer:
    """A chat answer as it came over the wire."""

    events: list[dict[str, Any]]
    done: bool  # whether [DONE] came

    @classmethod
    def read(cls, lines: Iterator[bytes]) -> "Answer":
        payloads = [line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: ")]
        done = payloads[-1:] == [b"[DONE]"]
        return cls([json.loads(payload) for payload in payloads if payload != b"[DONE]"], done)

    @property
    def progress(self) -> list[dict[str, int]]:
        return [event["prompt_progress"] for event in self.events if "prompt_progress" in event]

    @property
    def deltas(self) -> list[dict[str, Any]]:
        return [event["choices"][0]["delta"] for event in self.events if event.get("choices")]

    @property
    def text(self) -> str:
        return "".join(delta.get("content") or "" for delta in self.deltas)

    @property
    def finish(self) -> str | None:
        reasons = [event["choices"][0]["finish_reason"] for event in self.events if event.get("choices")]
        return reasons[-1] if reasons else None

    @property
    def usage(self) -> dict[str, Any]:
        return next(event["usage"] for event in reversed(self.events) if event.get("usage"))

    @property
    def timings(self) -> dict[str, Any]:
        return next(event["timings"] for event in reversed(self.events) if event.get("timings"))

    @property
    def cache_n(self) -> int:
        return int(self.timings["cache_n"])


@dataclass
class Server:
    """A server under test, and the few calls the tests make."""

    url: str
    headers: dict[str, str] = field(default_factory=dict)

    def get(self, path: str, **options: Any) -> requests.Response:
        return requests.get(self.url + path, headers=self.headers, timeout=30, **options)

    def post(self, path: str, body: object = None) -> requests.Response:
        return requests.post(self.url + path, headers=self.headers, timeout=30, json=body)

    def open(
        self, said: str | list[dict[str, str]], *, stream_id: str | None = None, timeout: float = 60, **body: Any
    ) -> requests.Response:
        """A streaming chat request once its headers are in; the caller reads or closes it."""
        messages = [SYSTEM, *([{"role": "user", "content": said}] if isinstance(said, str) else said)]
        asked = {"messages": messages, "max_tokens": 4, "temperature": 0, "stream": True, "return_progress": True}
        extra = {"X-Conversation-Id": stream_id} if stream_id else {}
        return requests.post(
            f"{self.url}/v1/chat/completions",
            json={**asked, **body},
            headers={**self.headers, **extra},
            stream=True,
            timeout=timeout,
        )

    def chat(self, said: str | list[dict[str, str]], **body: Any) -> Answer:
        with self.open(said, **body) as response:
            assert response.status_code == 200, response.text
            return Answer.read(response.iter_lines(chunk_size=1))

    def slot(self, number: int) -> dict[str, Any]:
        return dict(self.get("/slots").json()[number])

    def quiet(self, number: int) -> Callable[[], bool]:
        return lambda: not self.slot(number)["is_processing"]

    def metric(self, name: str) -> int:
        lines = self.get("/metrics").text.splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith(f"llamacpp:{name} ")))

    def delete_stream(self, stream_id: str) -> requests.Response:
        url = f"{self.url}/v1/stream?conv_id={stream_id}"
        return requests.delete(url, headers=self.headers, timeout=30)

    def stream(self, stream_id: str, start: int = 0) -> requests.Response:
        return self.get(f"/v1/stream?conv_id={stream_id}&from={start}", stream=True)

    def lookup(self, *stream_ids: str) -> list[dict[str, Any]]:
        return list(self.post("/v1/streams/lookup", {"conversation_ids": stream_ids}).json())

    def action(self, slot: int | str, action: str, filename: str | None = None) -> requests.Response:
        return self.post(f"/slots/{slot}?action={action}", {"filename": filename} if filename else {})


def words(count: int) -> str:
    """A message nobody has sent before: its first word is random, the rest are a token or two each on any server."""
    return " ".join([secrets.token_hex(2), *(secrets.choice(COMMON) for _ in range(count))])


def new_id() -> str:
    return secrets.token_urlsafe(12)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def in_background(call: Callable[[], T]) -> Callable[[], T]:
    """Runs it beside the test; what is returned waits for its result."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(call)
    pool.shutdown(wait=False)
    return lambda: future.result(60)
