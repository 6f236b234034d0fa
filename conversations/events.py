"""The only user of the channel layer: `publish` sends, a `Feed` hears.

Events are hints: every one of them can be lost, and nothing is lost by it, because what they say is committed before
they are sent and a client that misses one (`seq`, `offset`, `ping`) gets a snapshot. So publishing never waits and
never raises: while Valkey is away events are dropped, and answers go on.
"""

import asyncio
import contextlib
import logging
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Iterable, Iterator
from typing import TypeVar
from uuid import UUID, uuid4

from channels.layers import get_channel_layer
from redis.exceptions import ConnectionError as LayerAway
from redis.exceptions import RedisError

from conversations.frames import Frame

logger = logging.getLogger(__name__)
T = TypeVar("T")

SEND_SECONDS = 2.0
MOST_PENDING = 20_000  # events; beyond that the layer is as good as away
MOST_UNHEARD = 1_000  # events waiting in one feed; a reader that slow is better served by a snapshot
JOIN_SECONDS = 0.5  # how long a subscriber waits for the layer before going on without it
RETRY_SECONDS = 1.0
PULSE_SECONDS = 0.5  # shorter than any break in hearing: after one the layer itself waits a second
SESSION_CHECK = "session.check"  # to a person's sockets, never to clients: see whether your session still is
PATH_CHANGED = "path.changed"  # to a conversation's sockets, never to clients: show the path that is shown now
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
                await _asked(layer.group_send(group, {"type": HANDLER, "events": frames}))
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


class Feed:
    """What is published to the groups it joined, for one socket or stream; silent while the layer is away.

    An async context manager. It promises order, not completeness: whenever something may be missing `take` says so,
    and its reader asks Postgres.
    """

    def __init__(self) -> None:
        self._layer = get_channel_layer()
        self._channel = f"feed.{uuid4().hex}"
        self._wanted: set[str] = set()
        self._joined: set[str] = set()
        self._unheard: list[Frame] = []
        self._missed = False
        self._heard = asyncio.Event()
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.closed = False

    async def __aenter__(self) -> "Feed":
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._keep_joined())]
        _feeds.add(self)
        _keep_pulse()
        return self

    async def __aexit__(self, *about: object) -> None:
        _feeds.discard(self)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for group in list(self._joined):
            await self.leave(group)

    async def join(self, group: str) -> None:
        """Hear what is published to `group` from now on; while the layer is away, as soon as it is back."""
        self._wanted.add(group)
        self._settled.clear()
        self._changed.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._settled.wait(), JOIN_SECONDS)

    async def leave(self, group: str) -> None:
        self._wanted.discard(group)
        self._joined.discard(group)
        with _layer_may_be_away():
            async with asyncio.timeout(SEND_SECONDS):
                await _asked(self._layer.group_discard(group, self._channel))

    async def wait(self) -> None:
        """Until there is something to take, or the feed is closed."""
        await self._heard.wait()

    async def wait_at_most(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.wait(), seconds)

    def take(self) -> tuple[list[Frame], bool]:
        """What came since the last call, and whether anything in between may have been missed."""
        unheard, self._unheard = self._unheard, []
        missed, self._missed = self._missed, False
        if not self.closed:
            self._heard.clear()
        return unheard, missed

    def doubt(self) -> None:
        """Something published may not have arrived."""
        self._missed = True
        self._heard.set()

    def close(self) -> None:
        """Let its reader go: `wait` returns at once, and `closed` is set."""
        self.closed = True
        self._heard.set()

    async def _listen(self) -> None:
        while True:
            try:
                message = await _asked(self._layer.receive(self._channel))
            except (RedisError, OSError):
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._unheard.extend(message["events"])
            if len(self._unheard) > MOST_UNHEARD:
                self._unheard.clear()
                self._missed = True
            self._heard.set()

    async def _keep_joined(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            while missing := self._wanted - self._joined:
                if not await self._join(missing):
                    await asyncio.sleep(RETRY_SECONDS)
                    self._missed = True  # what was published meanwhile did not reach us
            self._settled.set()
            if self._missed:
                self._heard.set()

    async def _join(self, groups: set[str]) -> bool:
        with _layer_may_be_away():
            async with asyncio.timeout(SEND_SECONDS):
                for group in groups:
                    await _asked(self._layer.group_add(group, self._channel))
                    self._joined.add(group)
            return True
        return False


async def _asked(of_layer: Awaitable[T]) -> T:
    """What the layer answers. Raises RedisError or OSError when it does not.

    All who listen share one connection. While one of them makes it anew after Valkey was away, redis-py gives the
    others one that has no socket, or one that is being read, and says so by an AttributeError or a RuntimeError.
    """
    try:
        return await of_layer
    except (AttributeError, RuntimeError) as error:
        raise LayerAway(f"the connection is being made anew: {error}") from error


@contextlib.contextmanager
def _layer_may_be_away() -> Iterator[None]:
    try:
        yield
    except (RedisError, OSError, TimeoutError) as error:
        logger.debug("channel layer away: %s", error)


_feeds: "weakref.WeakSet[Feed]" = weakref.WeakSet()


def close_feeds() -> None:
    """End every stream and socket of this process: it is going away."""
    for feed in list(_feeds):
        feed.close()


_pulse: "asyncio.Task[None] | None" = None


def _keep_pulse() -> None:
    global _pulse
    if _pulse is None or _pulse.done() or _pulse.get_loop() is not asyncio.get_running_loop():
        _pulse = asyncio.create_task(_beat_while_anybody_listens())


async def _beat_while_anybody_listens() -> None:
    while _feeds:  # whoever came while the last beats were being put away
        await _beat()


async def _beat() -> None:
    """Send ourselves numbers; one that does not come back means that events were lost. Ends when nobody listens.

    The layer re-joins by itself after Valkey was away, or cut us off because we read too slowly, and tells nobody.
    """
    group, sent, heard = f"pulse.{uuid4().hex}", 0, 0
    async with Feed() as feed:
        await feed.join(group)
        while len(_feeds) > 1:
            sent += 1
            with _layer_may_be_away():
                await _send_to(group, [{"number": sent}])
            await asyncio.sleep(PULSE_SECONDS)
            numbers = [beat["number"] for beat in feed.take()[0]]
            if numbers and numbers != list(range(heard + 1, numbers[-1] + 1)):
                logger.warning("events were lost: everybody who listens looks at the database")
                for other in _feeds:
                    other.doubt()
            heard = numbers[-1] if numbers else heard


async def _send_to(group: str, frames: list[Frame]) -> None:
    async with asyncio.timeout(SEND_SECONDS):
        await _asked(get_channel_layer().group_send(group, {"type": HANDLER, "events": frames}))


async def reach_layer() -> None:
    """Send nothing to nobody. Raises RedisError, OSError or TimeoutError when the channel layer does not take it."""
    await _send_to("nobody", [])
