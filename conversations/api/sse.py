"""One answer as server-sent events: the frames of the websocket, until its end.

`event:` is the frame's type, `id:` its `seq`, `data:` the frame. The first is `message.created`, the second a
`generation.snapshot`; another snapshot follows only where events were missed. A client that goes away stops nothing,
and `generations/{id}/events/` goes on from its `Last-Event-ID`.
"""

import json
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from django.db import connection
from django.http import StreamingHttpResponse
from rest_framework.renderers import JSONRenderer

from chatbackend.accounts import sessions
from conversations import access, catching_up, errors, events, frames, history
from conversations.actions import Sent
from conversations.following import SILENCE, Fit, Following, Silent
from conversations.frames import Frame
from conversations.models import Generation
from conversations.threads import in_thread

logger = logging.getLogger(__name__)

KEEP_ALIVE = 15.0  # seconds; proxies drop what is silent for a minute
CHECK = 15.0  # seconds between two looks at the session, as a websocket's pings make them
MEDIA_TYPE = "text/event-stream"

T = TypeVar("T")


class EventStreamRenderer(JSONRenderer):
    """Lets a client ask for the stream; what is refused before it begins is plain JSON."""

    media_type = MEDIA_TYPE
    format = "sse"


@dataclass(frozen=True, slots=True)
class Client:
    """Who asks: `person`, signed in by the session `key`."""

    person: int
    key: str

    def check(self) -> None:
        """A session that ended elsewhere ends here. Raises NotSignedIn."""
        if sessions.still(self.key, self.person) is None:
            raise errors.NotSignedIn("This session has ended: sign in again.")


async def answer(client: Client, sent: Sent) -> AsyncIterator[bytes]:
    """The stream of the answer to what was just sent."""
    yield _event(sent.announcement)
    async with events.Feed() as feed:
        stream = _Stream(client, sent.generation.id, feed)
        await stream.join(sent.generation.conversation)
        async for piece in stream.pieces():
            yield piece


async def answer_from(client: Client, found: Generation, after: int | None) -> AsyncIterator[bytes]:
    """What comes after its event `after`, which a client has; None: it has nothing."""
    async with events.Feed() as feed:
        stream = _Stream(client, found.pk, feed)
        await stream.join(found.conversation_id)
        async for piece in stream.pieces(found.conversation_id, after):
            yield piece


def response(stream: AsyncIterator[bytes]) -> StreamingHttpResponse:
    """Unbuffered by proxies, and without a connection to Postgres: it may take hours."""
    connection.close()
    return StreamingHttpResponse(
        stream, content_type=MEDIA_TYPE, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    )


class _Stream:
    def __init__(self, client: Client, generation: UUID, feed: events.Feed) -> None:
        self._client, self._person = client, client.person
        self._generation = generation
        self._key = str(generation)
        self._feed = feed
        self._following = Following()
        self._sent_at = self._checked_at = time.monotonic()

    async def join(self, conversation: UUID) -> None:
        """Hear of it, and of the end of the session."""
        await self._feed.join(events.group_of_conversation(conversation))
        await self._feed.join(events.group_of_person(self._person))

    async def pieces(self, conversation: UUID | None = None, after: int | None = None) -> AsyncIterator[bytes]:
        """With both: only what comes after event `after`."""
        if after is not None:
            has = {"id": self._key, "conversation": str(conversation), "seq": after, "status": "running"}
            self._following.begin(has)
        for frame in await (
            self._snapshot() if after is None else self._told(Silent(str(conversation), self._generation, after))
        ):
            yield self._piece(frame)
        while self._following.is_live(self._key) and not self._feed.closed:
            await self._feed.wait_at_most(SILENCE)
            for frame in await self._news():
                yield self._piece(frame)
            if time.monotonic() - self._sent_at > KEEP_ALIVE:
                self._sent_at = time.monotonic()
                yield b": keep-alive\n\n"

    def _piece(self, frame: Frame) -> bytes:
        self._sent_at = time.monotonic()
        return _event(frame)

    async def _news(self) -> list[Frame]:
        heard, missed = self._feed.take()
        if ended := await self._session(missed or any(frame["type"] == events.SESSION_CHECK for frame in heard)):
            return ended
        if missed:
            return await self._snapshot()
        news: list[Frame] = []
        for frame in heard:
            if frame.get("generation") == self._key:
                fit = self._following.judge(frame)
                news += [frame] if fit is Fit.NEXT else await self._snapshot() if fit is Fit.HOLE else []
        return news or await self._asked()

    async def _session(self, told: bool) -> list[Frame]:
        """What ends the stream when its session has ended: looked at when `told` to, and else every CHECK seconds."""
        if not told and time.monotonic() - self._checked_at < CHECK:
            return []
        self._checked_at = time.monotonic()
        try:
            await in_thread(self._client.check)()
        except errors.ChatError as problem:
            return self._trouble(problem)
        return []

    async def _asked(self) -> list[Frame]:
        """After a silence: what Postgres has and we were not told."""
        for silent in self._following.silent():
            return await self._told(silent)
        return []

    async def _told(self, client: Silent) -> list[Frame]:
        try:
            missed = await in_thread(catching_up.news)(self._person, client)
        except errors.ChatError as problem:
            return self._trouble(problem)
        if missed is None:
            return await self._snapshot()
        return [frame for frame in missed if self._following.judge(frame) is Fit.NEXT]

    async def _snapshot(self) -> list[Frame]:
        """The generation as it is now, and its end if it has ended."""
        try:
            view = await in_thread(_view)(self._person, self._generation)
        except errors.ChatError as problem:
            return self._trouble(problem)
        shown = frames.generation_snapshot(view)
        self._following.begin(shown)
        return [shown] if view.live else [shown, frames.ended(view)]

    def _trouble(self, problem: errors.ChatError) -> list[Frame]:
        """Deleted: it ends. Postgres away: it goes on when that is back, from wherever it was."""
        if not problem.retryable:
            self._following.forget(self._key)
            return [frames.error(problem, generation=self._key)]
        if not self._following.knows(self._key):
            self._following.await_snapshot(self._key, "")
        return []


def _view(person: int, generation: UUID) -> history.GenerationView:
    return history.generation(access.generation(person, generation))


def _event(frame: Frame) -> bytes:
    number = f"id: {frame['seq']}\n" if "seq" in frame else ""
    data = json.dumps(frame, ensure_ascii=False, separators=(",", ":"))
    return f"event: {frame['type']}\n{number}data: {data}\n\n".encode()
