"""The product as a client has it: signed up, a websocket, REST. Only what is public is used."""

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from websockets.sync.client import ClientConnection, connect


class Tab:
    """A websocket that follows one conversation."""

    def __init__(self, connection: ClientConnection, conversation: str) -> None:
        self._connection, self._conversation = connection, conversation

    def say(self, text: str, **more: Any) -> float:
        """Send it; the seconds until the first piece of its answer is there."""
        client_id, began = str(uuid.uuid4()), time.monotonic()
        self.send("send", conversation=self._conversation, client_id=client_id, text=text, **more)
        # What other tabs said meanwhile is still to be read.
        while (created := self._next()).get("client_id") != client_id or created["type"] == "error":
            if created["type"] == "error":
                raise RuntimeError(str(created))
        answer = created["messages"][-1]["generation"]["id"]
        while self.until("generation.delta")["generation"] != answer:
            pass
        return time.monotonic() - began

    def send(self, type_: str, **fields: Any) -> None:
        self._connection.send(json.dumps({"type": type_, **fields}))

    def _next(self) -> dict[str, Any]:
        return dict(json.loads(self._connection.recv(120)))

    def until(self, type_: str) -> dict[str, Any]:
        """The next frame of this type. Raises RuntimeError for an error or another end of an answer."""
        while (frame := self._next())["type"] != type_:
            if frame["type"] in ("error", "generation.failed", "generation.interrupted", "generation.done"):
                raise RuntimeError(str(frame))
        return frame


@dataclass
class Person:
    """Somebody new at the site of `address`."""

    address: str  # http://127.0.0.1:port
    session: requests.Session = field(default_factory=requests.Session)

    def __post_init__(self) -> None:
        self.session.mount("http://", HTTPAdapter(pool_maxsize=64))  # as many as ask at once
        account = {"username": f"bench-{uuid.uuid4().hex[:8]}", "password": uuid.uuid4().hex}
        signed_up = self.session.post(f"{self.address}/_allauth/app/v1/auth/signup", json=account, timeout=30)
        signed_up.raise_for_status()
        self.session.headers["X-Session-Token"] = self.token = signed_up.json()["meta"]["session_token"]

    def post(self, path: str, body: dict[str, Any]) -> requests.Response:
        return self.session.post(f"{self.address}/api/v1/{path}", json=body, timeout=60)

    def conversation(self, **fields: Any) -> str:
        made = self.post("conversations/", fields)
        made.raise_for_status()
        return str(made.json()["id"])

    def say(self, conversation: str, text: str) -> requests.Response:
        """Send it over REST."""
        return self.post(f"conversations/{conversation}/messages/", {"client_id": str(uuid.uuid4()), "text": text})

    @contextmanager
    def tab(self, conversation: str) -> Iterator[Tab]:
        where = self.address.replace("http", "ws", 1) + "/ws/"
        # Whoever opened another tab reads this one later: without a bound it would stop listening, also to pings.
        with connect(where, max_size=2**24, max_queue=None, ping_interval=None) as connection:
            tab = Tab(connection, conversation)
            tab.send("auth", token=self.token)
            tab.until("ready")
            tab.send("subscribe", conversation=conversation)
            tab.until("snapshot")
            yield tab
