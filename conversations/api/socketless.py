"""The websocket's frames as server-sent events, for networks that let no websocket through.

One stream is one socket that has subscribed: each `data:` is a frame, and the same consumer says what it is and when,
so whatever holds for the websocket holds here. What a client would send goes over REST instead. The stream pings by
itself, because a browser shows its pages no comments: one that says nothing for longer is dead.
"""

import asyncio
import json
import logging
from collections import deque
from collections.abc import AsyncIterator, MutableMapping
from typing import Any
from uuid import UUID

from django.conf import settings
from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request

from conversations import access
from conversations.api import pagination, sse
from conversations.api.views import ABSENT, HTML, REFUSED, View, client
from conversations.consumer import ChatConsumer
from conversations.fields import Id
from conversations.frames import Frame

logger = logging.getLogger(__name__)

PING_SECONDS = 5.0

Message = MutableMapping[str, Any]


class Events(View):
    renderer_classes = (JSONRenderer, sse.EventStreamRenderer)

    @extend_schema(
        operation_id="events",
        parameters=[OpenApiParameter("conversation", UUID, description="The one to follow."), HTML],
        responses={
            (200, sse.MEDIA_TYPE): OpenApiResponse(OpenApiTypes.STR, description=__doc__),
            **REFUSED,
            **ABSENT,
        },
    )
    def get(self, request: Request) -> StreamingHttpResponse:
        """What `/ws/` sends a client that follows `conversation`, as server-sent events."""
        conversation = None
        if asked := request.query_params.get("conversation"):
            conversation = _id(asked)
            access.conversation(self.person, conversation)
        html = pagination.flag(request, "html")
        return sse.response(stream(client(request).key, conversation, html=html))


async def stream(key: str, conversation: UUID | None, *, html: bool) -> AsyncIterator[bytes]:
    """What a socket is sent that is signed in by the session `key` and follows `conversation`."""
    line = _Line(conversation, html=html)
    scope = {"type": "websocket", "cookies": {settings.SESSION_COOKIE_NAME: key}}
    consumer = asyncio.create_task(ChatConsumer()(scope, line.receive, line.send))
    consumer.add_done_callback(line.hang_up)
    try:
        while (frame := await line.sent()) is not None:
            yield f"data: {frame}\n\n".encode()
    finally:
        consumer.cancel()
        (ended,) = await asyncio.gather(consumer, return_exceptions=True)
        if isinstance(ended, Exception):
            logger.error("a stream of events broke", exc_info=ended)


class _Line:
    """The server's end of a socket that nobody connected. A frame waits until the one before has gone out."""

    def __init__(self, conversation: UUID | None, *, html: bool) -> None:
        self._said: deque[Message] = deque([{"type": "websocket.connect"}])
        if conversation:
            about = {"id": "subscribe", "conversation": str(conversation), "html": html}
            self._said.append(_frame({"type": "subscribe", **about}))
        self._sent: asyncio.Queue[str | None] = asyncio.Queue()
        self._going_out = False

    async def receive(self) -> Message:
        if self._said:
            return self._said.popleft()
        await asyncio.sleep(PING_SECONDS)
        return _frame({"type": "ping"})

    async def send(self, message: Message) -> None:
        if "text" in message:
            self._sent.put_nowait(message["text"])
            await self._sent.join()

    async def sent(self) -> str | None:
        """The next frame, the one before having gone out; None when there will be no more."""
        if self._going_out:
            self._sent.task_done()
        frame = await self._sent.get()
        self._going_out = True
        return frame

    def hang_up(self, _: "asyncio.Task[None]") -> None:
        self._sent.put_nowait(None)


def _frame(fields: Frame) -> Message:
    return {"type": "websocket.receive", "text": json.dumps(fields)}


def _id(words: str) -> UUID:
    try:
        return Id().run_validation(words)  # type: ignore[no-any-return]
    except serializers.ValidationError as error:
        raise serializers.ValidationError({"conversation": error.detail}) from error
