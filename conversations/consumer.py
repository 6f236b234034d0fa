"""The websocket `/ws/`: one per tab or device. It parses, calls one short function, relays; it never works.

Frames of the client, events from the channel layer and a tick each second are handled one after the other, so what a
client is sent is always in order: no event overtakes the snapshot it belongs after. Everything a client is shown was
read from Postgres or published after its commit, and one recovery path serves for a lost event, a reload, a slow
reader and a channel layer that is away: asking Postgres.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any
from uuid import UUID

from channels.exceptions import StopConsumer
from channels.generic.websocket import AsyncWebsocketConsumer
from channels.utils import await_many_dispatch
from django.conf import settings

from chatbackend.accounts.models import User
from conversations import access, actions, ahead, allowance, catching_up, errors, events, frames, history, rendered
from conversations.following import Fit, Following, Silent
from conversations.frames import Frame
from conversations.incoming import LONGEST_FRAME, Incoming
from conversations.live_html import Job, LiveHtml
from conversations.signing_in import SignedIn
from conversations.threads import in_thread

logger = logging.getLogger(__name__)

AUTH_SECONDS = 10.0
TICK_SECONDS = 1.0
MOST_SUBSCRIPTIONS = 20
UNAUTHENTICATED = 4401  # the close code
LIMITS = {
    "subscriptions": MOST_SUBSCRIPTIONS,
    "frames_per_second": allowance.PER_SECOND,
    "frame_bytes": LONGEST_FRAME,
}

Message = MutableMapping[str, Any]


class ChatConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    """What a client sends as `{"type": "subscribe"}` is handled by `on_subscribe`, and so on."""

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        # Channels' own loop refuses connections while the layer is away, and passes every message of every consumer
        # of the process through one thread.
        self.scope, self.base_send = scope, send
        key: str | None = scope["cookies"].get(settings.SESSION_COOKIE_NAME)
        self.session = SignedIn(key) if key else None
        self.person: User | None = None
        self.subscribed: set[str] = set()
        self.following = Following()
        self.live_html = LiveHtml()
        self.allowance = allowance.Allowance()
        self.tab = ahead.Tab()
        self.opened_at = time.monotonic()
        async with events.Feed() as self.feed:
            with contextlib.suppress(StopConsumer):
                await await_many_dispatch([receive, self._heard, self._tick, self._html_due], self.dispatch)

    async def dispatch(self, message: Message) -> None:
        await getattr(self, message["type"].replace(".", "_"))(message)

    async def _heard(self) -> Message:
        await self.feed.wait()
        return {"type": "heard"}

    async def _tick(self) -> Message:
        await asyncio.sleep(TICK_SECONDS)
        return {"type": "tick"}

    async def _html_due(self) -> Message:
        await self.live_html.wait()
        return {"type": "html"}

    # What happens to the socket.

    async def websocket_connect(self, message: Message) -> None:
        await self.accept()
        if self.session:
            await self._wait_for_session()

    async def websocket_receive(self, message: Message) -> None:
        frame = Incoming()
        try:
            frame.read(message.get("text"))
            self.allowance.take()
            if frame.type != "auth" and not (self.person and frame.type == "send"):
                await self._check_session()
            frame.check()
            await getattr(self, f"on_{frame.type}")(frame)
        except errors.NotSignedIn as problem:
            await self._turn_away(problem, frame.about)
        except errors.ChatError as problem:
            await self._send(frames.error(problem, **frame.about))

    async def heard(self, message: Message) -> None:
        heard, missed = self.feed.take()
        if self.feed.closed:
            raise StopConsumer  # the process is going away; the server closes the socket
        try:
            for frame in heard:
                await self._relay(frame)
            for conversation in list(self.subscribed) if missed else ():
                await self._show(conversation)
        except errors.NotSignedIn as problem:
            await self._turn_away(problem, {})
        except errors.Unavailable as problem:
            logger.info("events wait for the database: %s", problem.__cause__)

    async def tick(self, message: Message) -> None:
        """Retry what Postgres did not answer, and ask it about answers that have gone silent."""
        if self.person is None:
            await self._wait_for_session()
            return
        for silent in self.following.silent():
            with contextlib.suppress(errors.Unavailable):
                await self._catch_up(silent)

    async def html(self, message: Message) -> None:
        """Send answers as HTML, up to the events that were sent."""
        for job in self.live_html.take():
            try:
                blocks = await in_thread(_rendered)(job)
            except errors.Unavailable:
                self.live_html.put_off(job)
                continue
            if frame := self.live_html.done(job, blocks):
                await self._send(frame)

    # What clients send.

    async def on_auth(self, frame: Incoming) -> None:
        token = frame.fields["token"]
        if self.person and self.session and token != self.session.key:
            raise errors.Invalid("This socket is signed in already: open another one for another session.")
        self.session, self.person = SignedIn(token), None
        await self._sign_in(frame.about)

    async def on_subscribe(self, frame: Incoming) -> None:
        """The snapshot, then every event after it, until `unsubscribe`."""
        conversation = str(frame.fields["conversation"])
        if len(self.subscribed | {conversation}) > MOST_SUBSCRIPTIONS:
            raise errors.TooMany(
                f"One socket follows at most {MOST_SUBSCRIPTIONS} conversations: unsubscribe from one."
            )
        await in_thread(access.conversation)(self._me, UUID(conversation))
        # Join first, read then: what is published in between arrives after the snapshot and is judged against it.
        await self.feed.join(events.group_of_conversation(UUID(conversation)))
        self.subscribed.add(conversation)
        self.live_html.follow(conversation, frame.fields.get("html", False))
        await self._show(conversation, frame.about)
        await self._look_ahead(UUID(conversation))

    async def on_typing(self, frame: Incoming) -> None:
        """They are about to send there."""
        conversation = frame.fields["conversation"]
        await in_thread(access.conversation)(self._me, conversation)
        await self._look_ahead(conversation)

    async def on_unsubscribe(self, frame: Incoming) -> None:
        await self._drop(str(frame.fields["conversation"]))

    async def on_send(self, frame: Incoming) -> None:
        """Answered here as well as through the group: the sender learns of it though the channel layer be away.

        Nothing is in front of more first tokens: the session is checked by the statement that sends, not before it.
        """
        fields = frame.fields
        send = partial(
            actions.send, self._me, fields["conversation"], fields["client_id"], fields["text"], fields.get("parent"),
            to_leaf="parent" not in fields, branch=fields.get("branch", True), session=self.session,
        )  # fmt: skip
        sent = await in_thread(send)()
        self.tab.sent()
        if str(fields["conversation"]) in self.subscribed:
            self.following.begin(frames.generation(sent.generation))
            self.live_html.begin(sent.announcement["messages"][-1])
        await self._send({**sent.announcement, **frame.about})

    async def on_cancel(self, frame: Incoming) -> None:
        view = await in_thread(actions.cancel)(self._me, frame.fields["generation"])
        if not view.live:
            await self._relay(frames.ended(view))

    async def on_ping(self, frame: Incoming) -> None:
        """Where Postgres differs from what the client knows, a snapshot; then `pong`."""
        known = frame.fields.get("known", {})
        found = await in_thread(history.progress)(self._me, known)
        for conversation in {str(one.conversation) for one in found if one.seq != known[one.id]}:
            await self._show(conversation)
        gone = set(known) - {one.id for one in found}
        await self._send({**frames.pong(sorted(map(str, gone))), **frame.about})

    # Sessions.

    @property
    def _me(self) -> int:
        assert self.person is not None
        return self.person.pk

    async def _wait_for_session(self) -> None:
        if self.session:
            try:
                await self._sign_in({})
            except errors.NotSignedIn:
                self.session = None  # a cookie of an old session is as good as none: `auth` may follow
            except errors.Unavailable as problem:
                await self._send(frames.error(problem))
        elif time.monotonic() - self.opened_at > AUTH_SECONDS:
            await self._turn_away(errors.NotSignedIn(), {})

    async def _sign_in(self, about: Frame) -> None:
        await self._check_session()
        assert self.person is not None
        await self.feed.join(events.group_of_person(self._me))
        await self._send({**frames.ready(self._me, self.person.username, LIMITS), **about})

    async def _check_session(self) -> None:
        """At each frame: a session that ended elsewhere ends here. Raises NotSignedIn."""
        if self.session is None:
            raise errors.NotSignedIn("The first frame must be auth, with a session token.")
        self.person = await in_thread(self.session.check)()

    async def _turn_away(self, problem: errors.NotSignedIn, about: Frame) -> None:
        await self._send(frames.error(problem, **about))
        await self.close(UNAUTHENTICATED)
        raise StopConsumer

    # What clients are sent.

    async def _relay(self, frame: Frame) -> None:
        """Send an event if it is for this client, new to it, and the next it must see."""
        kind, conversation = frame["type"], frame.get("conversation")
        if kind == events.SESSION_CHECK:
            await self._check_session()
        elif kind in ("conversation.updated", "conversation.deleted"):
            if kind == "conversation.deleted":
                await self._drop(frame["conversation"])
            await self._send(frame)
        elif conversation not in self.subscribed:
            return
        elif kind == events.PATH_CHANGED:
            await self._show(frame["conversation"])
        else:
            await self._relay_turn(frame)

    async def _relay_turn(self, frame: Frame) -> None:
        if frame["type"] == "message.created":
            state = frame["messages"][-1]["generation"]
            if not self.following.knows(state["id"]):
                self.following.begin(state)
                self.live_html.begin(frame["messages"][-1])
                await self._send(frame)
            return
        fit = self.following.judge(frame)
        if fit is Fit.NEXT:
            self.live_html.hear(frame)
            await self._send(frame)
        elif fit is Fit.HOLE:
            await self._show(frame["conversation"])
            self.following.skip(frame)

    async def _catch_up(self, silent: Silent) -> None:
        try:
            missed = await in_thread(catching_up.news)(self._me, silent)
        except errors.NotFound:
            missed = None
        if missed is None:
            await self._show(silent.conversation)
        for frame in missed or ():
            await self._relay(frame)

    async def _show(self, conversation: str, about: Frame | None = None) -> None:
        """Send a snapshot; it replaces what the client had."""
        try:
            html = self.live_html.wanted(conversation)
            shown = await in_thread(catching_up.snapshot)(self._me, UUID(conversation), html)
        except errors.NotFound:
            await self._drop(conversation)
            await self._send(frames.conversation_deleted(UUID(conversation)))
            return
        if conversation in self.subscribed:
            answers = [message for message in shown["messages"] if message["generation"]]
            self.following.begin_all(conversation, (message["generation"] for message in answers))
            for message in answers:
                self.live_html.begin(message)
        await self._send({**shown, **(about or {})})

    async def _look_ahead(self, conversation: UUID) -> None:
        if self.tab.news(conversation):
            with contextlib.suppress(errors.Unavailable):
                await in_thread(ahead.hint)(self._me, conversation)

    async def _drop(self, conversation: str) -> None:
        if conversation in self.subscribed:
            self.subscribed.discard(conversation)
            self.following.forget_conversation(conversation)
            self.live_html.forget(conversation)
            await self.feed.leave(events.group_of_conversation(UUID(conversation)))

    async def _send(self, frame: Frame) -> None:
        # An error may repeat what no UTF-8 can say; escaped, it arrives as it came.
        escaped = frame["type"] == "error"
        await self.send(text_data=json.dumps(frame, ensure_ascii=escaped, separators=(",", ":")))


def _rendered(job: Job) -> list[str]:
    return rendered.finished(job.message, job.text) if job.final else rendered.live(job.text)
