"""The only user of the channel layer.

Events are hints: every one of them can be lost, and nothing is lost by it, because what they say is committed before
they are sent and a client that misses one (`seq`, `offset`, `ping`) gets a snapshot. So publishing never waits and
never raises: while Valkey is away events are dropped, and answers go on.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Iterable
from uuid import UUID

from channels.layers import get_channel_layer
from django.db import transaction
from redis.exceptions import RedisError

from conversations.frames import Frame

logger = logging.getLogger(__name__)

SEND_SECONDS = 2.0
MOST_PENDING = 20_000  # events; beyond that the layer is as good as away
HANDLER = "events"  # name of the consumer method that gets {"events": [frame, …]}


def group_of_conversation(conversation: UUID) -> str:
    return f"conversation.{conversation.hex}"


def group_of_person(person: int) -> str:
    return f"person.{person}"


def publish(conversation: UUID, *frames: Frame) -> None:
    """Send to whoever subscribed to the conversation; call after the commit of what the frames say."""
    _publisher().put(group_of_conversation(conversation), frames)


def publish_to_person(person: int, *frames: Frame) -> None:
    """Send to every socket of a person; call after the commit of what the frames say."""
    _publisher().put(group_of_person(person), frames)


def publish_on_commit(conversation: UUID, *frames: Frame) -> None:
    transaction.on_commit(lambda: publish(conversation, *frames))


def flush(timeout: float) -> None:
    """Wait until what was published so far has been sent or dropped, at most `timeout` seconds."""
    _publisher().flush(timeout)


class Publisher(threading.Thread):
    """One loop in one thread: `group_send` from threads without a loop opens a connection per call, or is lost."""

    def __init__(self) -> None:
        super().__init__(name="publisher", daemon=True)
        self._pending: deque[tuple[str, Frame]] = deque(maxlen=MOST_PENDING)
        self._loop = asyncio.new_event_loop()
        self._wake = asyncio.Event()
        self._idle = threading.Event()
        self._down = False

    def put(self, group: str, frames: Iterable[Frame]) -> None:
        self._pending.extend((group, frame) for frame in frames)
        self._idle.clear()
        self._loop.call_soon_threadsafe(self._wake.set)

    def flush(self, timeout: float) -> None:
        self._idle.wait(timeout)

    def run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._send_all())

    async def _send_all(self) -> None:
        while True:
            if not self._pending:
                self._idle.set()
            await self._wake.wait()
            self._wake.clear()
            for group, frames in self._take().items():
                await self._send(group, frames)

    def _take(self) -> dict[str, list[Frame]]:
        """What came in while the last round was being sent goes out together, in order, once per group."""
        taken: dict[str, list[Frame]] = {}
        while self._pending:
            group, frame = self._pending.popleft()
            taken.setdefault(group, []).append(frame)
        return taken

    async def _send(self, group: str, frames: list[Frame]) -> None:
        layer = get_channel_layer()
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await layer.group_send(group, {"type": HANDLER, "events": frames})
        except (RedisError, OSError, TimeoutError) as error:
            if not self._down:
                logger.warning("channel layer away, events are dropped until it is back: %s", error)
            self._down = True
            return
        if self._down:
            logger.info("channel layer is back")
            self._down = False


_instance: Publisher | None = None
_instance_lock = threading.Lock()


def _publisher() -> Publisher:
    global _instance
    with _instance_lock:
        if _instance is None or not _instance.is_alive():
            _instance = Publisher()
            _instance.start()
        return _instance
