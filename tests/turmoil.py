"""One conversation in turmoil: workers that write and die, events that are lost, pages that come and go.

What is stored is written by the real moves and the real writer; what is published goes through the real publisher
unless its fate is another. `settle` compares every page with what is stored.
"""

import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.db import OperationalError, connection

from conversations import actions, catching_up, errors, events, following, frames, history, turns
from conversations.claims import Claim
from conversations.models import Chunk, Conversation, Generation
from conversations.worker.writer import Share, Writer
from slots import leases
from slots.models import Server
from slots.renewal import Held
from tests import factories
from tests.eventually import eventually
from tests.reducer import Frame, Reducer
from tests.tabs import ENDED, Loop, Page, Socket

ARRIVES, TWICE, LOST, LATE = "arrives", "arrives twice", "is lost", "comes late"
FAILS, IN_DOUBT = "fails", "is in doubt"
NEVER, SOON = 1e9, 0.03  # seconds of silence until Postgres is asked
ANNOUNCEMENTS = ("message.created", events.PATH_CHANGED)

Pieces = list[tuple[int, str]]

_publish, _snapshot = events.publish, catching_up.snapshot

_STORED = """
SELECT m.id::text, m.text || coalesce(k.text, ''), m.reasoning || coalesce(k.reasoning, '')
FROM conversations_message m LEFT JOIN LATERAL (
  SELECT string_agg(c.text, '' ORDER BY c.seq) FILTER (WHERE c.part = 0) AS text,
         string_agg(c.text, '' ORDER BY c.seq) FILTER (WHERE c.part = 1) AS reasoning
  FROM conversations_generation g JOIN conversations_chunk c ON c.generation_id = g.id WHERE g.message_id = m.id
) k ON true WHERE m.conversation_id = %s"""


class Unlucky(Writer):
    """The worker's writer, whose next commit may go wrong."""

    trouble = ""

    def _store(self, batch: list[Share]) -> dict[int, tuple[bool, bool]]:
        trouble, self.trouble = self.trouble, ""
        if trouble == FAILS:
            raise OperationalError("it was not committed")
        told = super()._store(batch)
        if trouble == IN_DOUBT:
            raise OperationalError("it was committed, and the answer got lost")
        return told


class Run:
    """One worker that writes one answer."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.writer = Unlucky()
        self._writing = self.writer.begin(claim, Held(claim.grant, lambda: None), lambda: None)

    def write(self, pieces: Pieces, trouble: str = "") -> None:
        """Each piece in a commit of its own; with `trouble` the first one goes wrong and the next tries again."""
        self.writer.trouble = trouble
        for part, text in pieces:
            self.writer.put(self._writing, Chunk.Part(part), text, 1, self.claim.grant.stream_id, 1)
            with suppress(OperationalError):
                self.writer.round()

    def finish(self, ending: turns.Ending) -> None:
        """Store the rest and the end."""
        while self._writing.unstored:
            self.writer.round()
        self.writer.end(self._writing)
        turns.finish(self.claim, ending)
        leases.release(self.claim.grant, None, None)


@dataclass
class Layer:
    """What becomes of what is published; the channel layer promises nothing."""

    owe: Callable[[], None]
    fate: str = ARRIVES
    late: list[tuple[uuid.UUID, tuple[Frame, ...]]] = field(default_factory=list)
    lost_announcement: bool = False

    def publish(self, conversation: uuid.UUID, *sent: Frame) -> None:
        if self.fate in (LOST, LATE):
            self.owe()
            self.lost_announcement = self.lost_announcement or any(one["type"] in ANNOUNCEMENTS for one in sent)
            self.late += [(conversation, sent)] if self.fate == LATE else []
            return
        for _ in range(2 if self.fate == TWICE else 1):
            _publish(conversation, *sent)

    def release(self) -> None:
        """What is late arrives."""
        late, self.late = self.late, []
        for conversation, sent in late:
            self.owe()
            _publish(conversation, *sent)


@dataclass
class Stage:
    """What all examples share."""

    loop: Loop
    reducer: Reducer
    person: int
    key: str
    server: Server


class Turmoil:
    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._patch = pytest.MonkeyPatch()
        self.where: Conversation = factories.conversation(factories.person())
        self.pages: list[Page] = []
        self.ghosts: list[Socket] = []
        self.stale: list[Run] = []
        self.run: Run | None = None
        self.queued = False
        self.layer = Layer(self._owe)
        self.meanwhile: list[tuple[Callable[[], None], Callable[[], None]]] = []  # happens around the next snapshot
        self._over = threading.Event()
        self._patch.setattr(events, "publish", self.layer.publish)
        self._patch.setattr(catching_up, "snapshot", self._snapshot)
        self._wait_for_silence(NEVER)

    @property
    def live(self) -> bool:
        return self.queued or self.run is not None

    # Pages.

    def open_page(self, html: bool) -> Page:
        page = Page(self.stage.reducer, self.stage.key, str(self.where.pk), html)
        self.pages.append(page)
        self.connect(page)
        return page

    def connect(self, page: Page) -> None:
        self._call(page.connect)

    def disconnect(self, page: Page, noticed: bool) -> None:
        socket = self._call(page.leave)
        assert socket
        self.ghosts.append(socket)
        if noticed:
            self._call(socket.close)

    def let_read(self, page: Page, reads: bool) -> None:
        page.reads = reads
        self._call(page.read)

    def ping(self, page: Page) -> None:
        """Once it is answered, the page has of what it asked about whatever was stored when it asked."""
        nonce, known = uuid.uuid4().hex, self._call(page.known)
        stored = {str(one.id): one.seq for one in history.progress(self.stage.person, map(uuid.UUID, known))}
        self._call(lambda: page.say("ping", known=known, id=nonce))
        eventually(lambda: nonce in page.answers, every=0.005, what="the pong")
        for message in page.messages:
            if (state := message["generation"]) and state["id"] in stored:
                assert state["seq"] >= stored[state["id"]], message

    def connect_while(self, page: Page, before: Callable[[], None], after: Callable[[], None]) -> None:
        """Connect, and do this before and after its snapshot is read."""
        self._over.clear()
        self.meanwhile.append((before, after))
        self.let_read(page, True)
        self.connect(page)
        assert self._over.wait(10), "no snapshot was read"

    # What is asked for.

    def ask(self, wish: Callable[..., actions.Sent], *about: Any, **more: Any) -> None:
        with suppress(errors.CannotContinue):
            wish(self.stage.person, *about, **more)
            self.queued = True

    def send(self, words: str) -> None:
        self.ask(actions.send, self.where.pk, uuid.uuid4(), words, None, to_leaf=True)

    def send_from(self, page: Page, words: str) -> None:
        client_id = uuid.uuid4()
        self._call(lambda: page.say("send", conversation=str(self.where.pk), client_id=str(client_id), text=words))
        eventually(Generation.objects.filter(client_id=client_id).exists, every=0.005, what="the message to be stored")
        self.queued = True

    def path(self) -> list[Frame]:
        messages: list[Frame] = _snapshot(self.stage.person, self.where.pk)["messages"]
        return messages

    # What workers do.

    def begin(self) -> Run:
        """The answer that a worker writes; it is asked for, and a worker begins it, if that is not so."""
        if self.run is None:
            if not self.queued:
                self.send("Go on")
            self.claim()
        assert self.run
        return self.run

    def claim(self) -> None:
        claim = turns.claim(factories.WORKER, [self.stage.server.pk])
        assert claim
        self.run, self.queued = Run(claim), False
        self._owe()  # nothing is published of that

    def take_over(self) -> None:
        assert self.run
        factories.expire(self.run.claim.grant.slot)
        (claim,) = eventually(lambda: turns.take_overs(factories.OTHER_WORKER, [self.stage.server.pk]))
        self.stale.append(self.run)
        self.run = Run(claim)

    def lose_slot(self) -> None:
        """The slot is gone under the answer: it is queued again, or has had its attempts."""
        assert self.run
        grant = self.run.claim.grant
        leases.revoke(grant.slot, grant.fence)
        assert leases.stopped(grant.slot, grant.stream_id)
        self._owe()  # nothing is published of that
        self.stale.append(self.run)
        for conversation, generation in turns.rescue():
            events.publish(conversation, frames.ended(self.look(generation)))
        live = self.look(self.run.claim.generation).live
        self.run, self.queued = None, live

    def finish(self, ending: turns.Ending) -> None:
        assert self.run
        self.run.finish(ending)
        claim, self.run = self.run.claim, None
        events.publish(claim.conversation, frames.ended(self.look(claim.generation)))

    def stop(self) -> None:
        """At once while it waits; else whoever writes must obey."""
        live = Generation.objects.get(conversation=self.where, status__in=Generation.LIVE)
        actions.cancel(self.stage.person, live.pk)
        if self.run:
            self.finish(turns.Ending(Generation.Status.CANCELLED))
        self.queued = False

    def look(self, generation: uuid.UUID) -> history.GenerationView:
        return history.generation(Generation.objects.get(pk=generation))

    # What must be so.

    def check(self) -> None:
        """Nothing is shown that is not stored, and nothing was taken back."""
        shown = [message for page in self.pages for message in page.messages]
        with connection.cursor() as cursor:
            cursor.execute(_STORED, [self.where.pk])
            stored = {id_: {"text": text, "reasoning": reasoning} for id_, text, reasoning in cursor.fetchall()}
        for message in shown:
            for part, text in stored[message["id"]].items():
                assert text.startswith(message[part]), f"shown and not stored: {message}, stored is {text!r}"
        for page in self.pages:
            assert not page.problems, page.problems
            assert not (page.socket and page.socket.task.done()), page.socket.task.result()

    def settle(self) -> None:
        """Every page that reads shows what is stored: at once, or once it has asked if something was lost."""
        reading = [page for page in self.pages if page.socket and page.reads]
        eventually(lambda: all(page.loaded for page in reading), every=0.005, what="the snapshots")
        self._hear_out(reading)
        if any(page.owed for page in reading):
            self._ask()
        for page in reading:
            self._compare(page, exactly=page.owed)
            page.owed = False
        self._wait_for_silence(NEVER)

    def end(self) -> None:
        """Let everything come to rest, and see that it does."""
        self.layer.fate = ARRIVES
        self.layer.release()
        for page in self.pages:
            self.let_read(page, True)
            if page.socket is None:
                self.connect(page)
        self._owe()
        self.settle()
        if self.live:
            self.stop()
        self.settle()
        self._wait_for_silence(0)
        for page in self.pages:
            assert page.socket
            assert not self._call(page.socket.consumer.following.silent), "it goes on asking about what has ended"
        self.check()

    def __enter__(self) -> "Turmoil":
        return self

    def __exit__(self, *about: object) -> None:
        self._patch.undo()
        sockets = [*self.ghosts, *filter(None, [page.socket for page in self.pages])]
        for socket in sockets:
            self._call(socket.close)
        self.stage.loop.finish(*(socket.task for socket in sockets))
        if self.run:
            self.run.finish(turns.Ending(Generation.Status.CANCELLED))
        elif self.queued:
            self.stop()

    def _owe(self) -> None:
        for page in self.pages:
            page.owed = True

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        return self.stage.loop.call(function, *args)

    def _ask(self) -> None:
        self._wait_for_silence(SOON)
        if self.layer.lost_announcement:  # what the pulse says of a layer that loses
            for page in self.pages:
                if page.socket:
                    self._call(page.socket.consumer.feed.doubt)
            self.layer.lost_announcement = False

    def _wait_for_silence(self, seconds: float) -> None:
        self._patch.setattr(following, "SILENCE", seconds)

    def _hear_out(self, pages: list[Page]) -> None:
        """Until each has handled what was published so far; one that is too slow misses this, and hears the next."""
        events.flush(5)
        nonce = uuid.uuid4().hex

        def heard() -> bool:
            events.publish_to_person(self.stage.person, {"type": "conversation.updated", "conversation": {"id": nonce}})
            return wait_briefly(lambda: all(nonce in page.answers for page in pages))

        eventually(heard, what="the pages to hear of an event")

    def _compare(self, page: Page, exactly: bool) -> None:
        stored = _snapshot(self.stage.person, self.where.pk, page.html and exactly)["messages"]
        wanted = [_told(message, exactly) for message in stored]

        def same() -> bool:
            shown = [_told(message, exactly) for message in page.messages]
            assert shown == wanted, f"shown {shown}, stored {wanted}"
            return True

        eventually(same, 5, every=0.005, what="the page to show what is stored")

    def _snapshot(self, *about: Any) -> Frame:
        try:
            before, after = self.meanwhile.pop()
        except IndexError:
            return _snapshot(*about)
        before()
        read = _snapshot(*about)
        after()
        self._over.set()
        return read


def wait_briefly(check: Callable[[], bool]) -> bool:
    with suppress(AssertionError):
        return eventually(check, 0.1, every=0.003)
    return False


def _told(message: Frame, exactly: bool) -> Frame:
    """What of a message a page must show; that an answer waits or is written may be told later than its text."""
    state = message["generation"]
    shown = {key: message[key] for key in ("id", "parent", "role", "text", "reasoning", "versions")}
    if exactly and message.get("html"):
        shown["html"] = message["html"]
    if state:
        status = state["status"] if exactly or state["status"] in ENDED else "live"
        kept = {key: state.get(key) for key in ("id", "seq", "finish_reason", "error", "usage", "timings")}
        shown["generation"] = {**kept, "status": status}
    return shown
