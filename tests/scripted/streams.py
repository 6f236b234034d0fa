"""Resumable streams: what an answer has sent so far, by the X-Conversation-Id of its request."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

RING_BYTES = 4 * 1024 * 1024


class OffsetLost(Exception):
    """The wanted bytes are no longer in the ring."""


class Session:
    """One answer's bytes. The request that opened it feeds it, also after its client has gone."""

    def __init__(self, stream_id: str, ring_bytes: int = RING_BYTES) -> None:
        self.id = stream_id
        self.started_at, self.completed_at = int(time.time()), 0
        self.total = 0
        self.done = False
        self.stop_asked = False
        self.on_stop: Callable[[], None] = lambda: None
        self._ring_bytes = ring_bytes
        self._kept = bytearray()
        self._readers: set[asyncio.Event] = set()

    @property
    def start(self) -> int:
        """The offset of the oldest byte still kept."""
        return self.total - len(self._kept)

    def feed(self, data: bytes) -> None:
        self._kept += data
        self.total += len(data)
        del self._kept[: max(0, len(self._kept) - self._ring_bytes)]
        self._ring()

    def finish(self) -> None:
        self.done = True
        self.completed_at = int(time.time())
        self._ring()

    def stop(self) -> None:
        """Ask the request that feeds it to cancel its generation; it does so when it next looks."""
        self.stop_asked = True
        self.on_stop()

    def _ring(self) -> None:
        for bell in self._readers:
            bell.set()

    def check(self, offset: int) -> None:
        if offset < self.start:
            raise OffsetLost

    async def read(self, offset: int) -> AsyncIterator[bytes]:
        """The bytes from `offset` on, once they are there, until the end. Raises OffsetLost for a reader left behind.

        An offset past the end of a finished stream is an empty answer, no error (as in llama-server).
        """
        bell = asyncio.Event()
        self._readers.add(bell)
        try:
            while True:
                bell.clear()
                self.check(offset)
                data = bytes(self._kept[offset - self.start :])
                if data:
                    offset += len(data)
                    yield data
                elif self.done:
                    return
                else:
                    await bell.wait()
        finally:
            self._readers.discard(bell)

    def row(self) -> dict[str, object]:
        return {
            "conversation_id": self.id, "is_done": self.done, "total_bytes": self.total,
            "started_at": self.started_at, "completed_at": self.completed_at,
        }  # fmt: skip


class Streams:
    """All sessions of this process. One per id: a second request with the same id stops the first."""

    def __init__(self, ring_bytes: int = RING_BYTES) -> None:
        self._ring_bytes = ring_bytes
        self._sessions: dict[str, Session] = {}

    def open(self, stream_id: str) -> Session:
        self.delete(stream_id)
        session = self._sessions[stream_id] = Session(stream_id, self._ring_bytes)
        return session

    def get(self, stream_id: str) -> Session | None:
        return self._sessions.get(stream_id)

    def delete(self, stream_id: str) -> None:
        """Forget it and stop its generation; nothing happens for an id nobody has."""
        session = self._sessions.pop(stream_id, None)
        if session is not None and not session.done:
            session.stop()

    def lookup(self, ids: list[str]) -> list[dict[str, object]]:
        return [self._sessions[wanted].row() for wanted in ids if wanted in self._sessions]
