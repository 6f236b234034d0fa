"""Tabs of the browser without a browser: the real consumer in this process, the page's own reducer behind it.

What main.js and connection.js do around the reducer is done here: subscribe when the socket is signed in, subscribe
again when a frame does not fit. Everything happens on one event loop in a thread of its own.
"""

import asyncio
import json
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, TypeVar

from django.conf import settings

from conversations.consumer import ChatConsumer
from tests.reducer import Frame, Reducer

T = TypeVar("T")

BUFFERED = 5  # frames on their way to a page that does not read, before the server waits for it
ENDED = ("done", "cancelled", "failed", "interrupted")


class Socket:
    """One websocket: what an ASGI server does for the consumer."""

    def __init__(self, page: "Page") -> None:
        self._page = page
        self.wire: deque[Frame] = deque()
        self.room = asyncio.Event()
        self.gone = False
        self._inbox: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self.consumer = ChatConsumer()
        scope = {"type": "websocket", "cookies": {settings.SESSION_COOKIE_NAME: page.key}}
        self.task = asyncio.create_task(self.consumer(scope, self._inbox.get, self._send))
        self._inbox.put_nowait({"type": "websocket.connect"})

    def say(self, frame: Frame) -> None:
        self._inbox.put_nowait({"type": "websocket.receive", "text": json.dumps(frame)})

    def close(self) -> None:
        self.gone = True
        self.room.set()
        self._inbox.put_nowait({"type": "websocket.disconnect", "code": 1001})

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if "text" not in message:
            return
        self.wire.append(json.loads(message["text"]))
        self._page.read()
        while len(self.wire) > BUFFERED and not self.gone:
            self.room.clear()
            await self.room.wait()


class Page:
    """One tab that shows one conversation. `problems`: what no page may ever see."""

    def __init__(self, reducer: Reducer, key: str, conversation: str, html: bool) -> None:
        self._reducer = reducer
        self.key = key
        self.conversation = conversation
        self.html = html
        self.id = uuid.uuid4().hex
        self.messages: list[Frame] = []
        self.answers: set[str] = set()  # what came back of what was asked
        self.problems: list[str] = []
        self.reads = True
        self.loaded = False
        self.owed = False  # it may have missed what only asking finds
        self.socket: Socket | None = None

    def connect(self) -> None:
        self.loaded = self.owed = False
        self.socket = Socket(self)

    def leave(self) -> Socket | None:
        """The socket is gone for the page; what was on its way is lost."""
        left, self.socket = self.socket, None
        return left

    def say(self, type_: str, **fields: Any) -> None:
        if self.socket:
            self.socket.say({"type": type_, **fields})

    def subscribe(self) -> None:
        self.say("subscribe", conversation=self.conversation, html=self.html)

    def known(self) -> dict[str, int]:
        """As main.js says it in a ping."""
        states = [message["generation"] for message in self.messages if message["generation"]]
        return {state["id"]: state["seq"] for state in states if state["status"] not in ENDED}

    def read(self) -> None:
        while self.reads and self.socket and self.socket.wire:
            self._take(self.socket.wire.popleft())
            if self.socket:
                self.socket.room.set()

    def _take(self, frame: Frame) -> None:
        about = frame.get("conversation")
        if frame["type"] == "ready":
            self.subscribe()
        elif frame["type"] == "error":
            self.problems.append(f"an error: {frame}")
        elif frame["type"] == "pong":
            self.answers.add(frame["re"])
        elif frame["type"] == "conversation.updated":
            self.answers.add(frame["conversation"]["id"])
        elif (about["id"] if isinstance(about, dict) else about) == self.conversation:
            self._apply(frame)

    def _apply(self, frame: Frame) -> None:
        ask, messages = self._reducer.apply(self.id, self.conversation, frame)
        before = {message["id"]: message for message in self.messages}
        for message in messages:
            if message["id"] in before and not _follows(message, before[message["id"]]):
                self.problems.append(f"taken back by {frame}: {before[message['id']]}, then {message}")
        self.messages = messages
        self.loaded = self.loaded or frame["type"] == "snapshot"
        if ask:
            self.subscribe()
            if frame["type"] == "generation.delta":
                self.problems.append(f"a socket skips nothing: {frame}")


def _follows(new: Frame, old: Frame) -> bool:
    """Whether a page may show `new` after `old` of the same message."""
    if not all(new[part].startswith(old[part]) for part in ("text", "reasoning")):
        return False
    now, then = new["generation"], old["generation"]
    if not then or now["id"] > then["id"]:
        return True
    ended_stays = then["status"] not in ENDED or now["status"] == then["status"]
    return bool(now["id"] == then["id"] and now["seq"] >= then["seq"] and ended_stays)


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """`function(*args)`, over there."""

        async def call() -> T:
            return function(*args)

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(20)

    def finish(self, *tasks: "asyncio.Task[None]") -> None:
        """Wait for them to end. Raises what one of them raised."""

        async def finish() -> None:
            async with asyncio.timeout(10):
                await asyncio.gather(*tasks)

        asyncio.run_coroutine_threadsafe(finish(), self._loop).result(20)

    def close(self) -> None:
        async def end() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def loop() -> Iterator[Loop]:
    made = Loop()
    try:
        yield made
    finally:
        made.close()
