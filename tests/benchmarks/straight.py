"""The same llama-server without us: one keep-alive connection, the request that any client would send."""

import json
import time
from dataclasses import dataclass, field
from typing import Any

import requests


@dataclass
class Said:
    """An answer: seconds from sending to its first piece of text, the text, and its model tokens."""

    first: float
    text: str
    tokens: int


@dataclass
class Straight:
    """One slot of the server at `url`. Not for two threads."""

    url: str
    api_key: str
    id_slot: int
    session: requests.Session = field(default_factory=requests.Session)

    def ask(self, messages: list[dict[str, str]], **more: Any) -> Said:
        body = {
            "messages": messages, "stream": True, "stream_options": {"include_usage": True}, "temperature": 0,
            "id_slot": self.id_slot, **more,
        }  # fmt: skip
        began = time.monotonic()
        with self.session.post(
            f"{self.url}/v1/chat/completions", json=body, stream=True, timeout=120,
            headers=self._headers,
        ) as response:  # fmt: skip
            response.raise_for_status()
            return self._read(response, began)

    def act(self, action: str, filename: str) -> None:
        """Save the slot to a file of the server's, or restore it from there."""
        requests.post(
            f"{self.url}/slots/{self.id_slot}", params={"action": action}, json={"filename": filename}, timeout=60,
            headers=self._headers,
        ).raise_for_status()  # fmt: skip

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def _read(self, response: requests.Response, began: float) -> Said:
        said, pending = Said(0.0, "", 0), b""
        while piece := response.raw.read1(65536):
            *lines, pending = (pending + piece).split(b"\n")
            for line in lines:
                if line.startswith(b"data: {"):
                    _take(said, json.loads(line[6:]), began)
        return said


def _take(said: Said, event: dict[str, Any], began: float) -> None:
    said.tokens = (event.get("usage") or {}).get("completion_tokens", said.tokens)
    for choice in event["choices"]:
        if words := choice["delta"].get("content"):
            said.first = said.first or time.monotonic() - began
            said.text += words
