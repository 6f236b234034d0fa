"""An answer as server-sent events."""

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import requests
from asgiref.sync import async_to_sync

from conversations import turns
from conversations.api import sse
from conversations.models import Conversation, Generation
from tests import factories, worker
from tests.outages import no_valkey
from tests.test_api_conversations import refused
from tests.web import Person, session_of, sign_out

pytestmark = pytest.mark.django_db(transaction=True)


class Stream:
    """The events of one answer, read as they come; `text` is what a client would show."""

    def __init__(self, response: requests.Response) -> None:
        self.response = response
        self._lines = response.iter_lines(chunk_size=None, decode_unicode=False)
        self.events: list[dict[str, Any]] = []
        self.comments = 0
        self.text = ""

    def next(self) -> dict[str, Any] | None:
        """The next event; None at the end of the stream."""
        fields: dict[str, str] = {}
        for line in self._lines:
            name, _, value = line.decode().partition(": ")
            if line and name:
                fields[name] = value
            self.comments += line.startswith(b":")
            if not line and "data" in fields:
                return self._read(fields)
        return None

    def until(self, type_: str) -> dict[str, Any]:
        while event := self.next():
            if event["type"] == type_:
                return event
        raise AssertionError(f"the stream ended without {type_}: {self.events}")

    def rest(self) -> list[dict[str, Any]]:
        while self.next():
            pass
        return self.events

    def _read(self, fields: dict[str, str]) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(fields["data"])
        assert fields["event"] == event["type"]
        assert fields.get("id", "None") == str(event.get("seq"))
        if event["type"] == "generation.snapshot":
            assert event["text"].startswith(self.text), "text was taken back"
            self.text = event["text"]
        elif event["type"] == "generation.delta":
            assert event["offset"] == len(self.text)
            self.text += event["text"]
        self.events.append(event)
        return event


@contextmanager
def asking(person: Person, where: Conversation, **more: Any) -> Iterator[Stream]:
    body = {"client_id": str(uuid.uuid4()), "text": "How do steam engines work?", **more}
    with person.post(
        f"conversations/{where.pk}/messages/", body, headers={"Accept": "text/event-stream"}, stream=True
    ) as response:
        assert response.status_code == 200, response.text
        assert response.headers["Content-Type"] == "text/event-stream"
        yield Stream(response)


@pytest.fixture
def where(alice: Person) -> Conversation:
    factories.server()
    return factories.conversation(factories.person("alice"))


def test_an_answer_is_streamed_from_its_snapshot_to_its_end(alice: Person, where: Conversation) -> None:
    with asking(alice, where) as stream:
        created = stream.next()
        assert created
        assert created["type"] == "message.created"
        snapshot = stream.next()
        assert snapshot
        assert (snapshot["type"], snapshot["status"], snapshot["text"]) == ("generation.snapshot", "queued", "")
        claim = worker.claimed()
        assert snapshot["id"] == str(claim.generation)
        worker.publish(claim, "Heat ", "makes ", "steam 😀.")
        worker.finish(claim)
        events = stream.rest()
    assert events[-1]["type"] == "generation.done"
    assert stream.text == worker.look(claim).text == "Heat makes steam 😀."
    assert [event["type"] for event in events].count("generation.snapshot") == 1


def test_events_come_when_they_happen_not_at_the_end(alice: Person, where: Conversation) -> None:
    with asking(alice, where) as stream:
        stream.until("generation.snapshot")
        claim = worker.claimed()
        for piece in ("one ", "two ", "three"):
            worker.publish(claim, piece)
            assert stream.until("generation.delta")["text"] == piece
        worker.finish(claim)
        stream.until("generation.done")


def test_the_answer_of_a_repeated_send_is_streamed_from_where_it_is(alice: Person, where: Conversation) -> None:
    same = {"client_id": str(uuid.uuid4()), "parent": None}
    with asking(alice, where, **same) as stream:
        stream.until("generation.snapshot")
    claim = worker.claimed()
    worker.publish(claim, "so ", "far ")
    with asking(alice, where, **same) as stream:
        assert stream.until("generation.snapshot")["text"] == "so far "
        worker.publish(claim, "and on")
        worker.finish(claim)
        stream.until("generation.done")
        assert stream.next() is None
    assert stream.text == "so far and on"
    with asking(alice, where, **same) as stream:
        assert [event["type"] for event in stream.rest()] == [
            "message.created",
            "generation.snapshot",
            "generation.done",
        ]


def test_what_is_never_published_is_found_by_asking(alice: Person, where: Conversation) -> None:
    with asking(alice, where) as stream:
        stream.until("generation.snapshot")
        claim = worker.claimed()
        factories.wrote(claim, "never ", "published")
        assert stream.until("generation.delta")["text"] == "never "
        turns.finish(claim, turns.Ending(Generation.Status.DONE))
        stream.until("generation.done")
    assert stream.text == "never published"


def test_the_stream_goes_on_while_valkey_is_away(alice: Person, where: Conversation) -> None:
    with asking(alice, where) as stream:
        stream.until("generation.snapshot")
        claim = worker.claimed()
        worker.publish(claim, "before ")
        stream.until("generation.delta")
        with no_valkey():
            worker.publish(claim, "during ")
            while stream.text != "before during ":
                assert stream.next()
        worker.publish(claim, "after")
        worker.finish(claim)
        stream.until("generation.done")
    assert stream.text == "before during after"


def test_a_client_that_goes_away_stops_nothing(alice: Person, where: Conversation) -> None:
    with asking(alice, where) as stream:
        stream.until("generation.snapshot")
        claim = worker.claimed()
        worker.publish(claim, "half")
    row = Generation.objects.get(pk=claim.generation)
    assert (row.status, row.stop_asked_at) == ("running", None)


def test_stopping_ends_the_stream(alice: Person, where: Conversation) -> None:
    with asking(alice, where) as stream:
        generation = stream.until("generation.snapshot")["id"]
        alice.post(f"generations/{generation}/cancel/")
        stream.until("generation.cancelled")
        assert stream.next() is None


def test_a_conversation_deleted_meanwhile_ends_the_stream_with_the_reason(alice: Person, where: Conversation) -> None:
    with asking(alice, where) as stream:
        stream.until("generation.snapshot")
        alice.delete(f"conversations/{where.pk}/")
        assert stream.until("error")["code"] == "not_found"
        assert stream.next() is None


def test_a_long_silence_is_filled_with_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE", 0.1)
    monkeypatch.setattr(sse, "SILENCE", 0.05)
    waiting = factories.sent().generation

    async def pieces() -> list[bytes]:
        return [await anext(stream) for _ in range(2)]

    stream = sse.answer_from(sse.Client(waiting.owner_id, ""), waiting, None)
    snapshot, comment = async_to_sync(pieces)()
    assert snapshot.startswith(b"event: generation.snapshot")
    assert comment == b": keep-alive\n\n"


def test_the_end_of_a_session_ends_its_stream_and_no_other(alice: Person, where: Conversation) -> None:
    other = Person(alice.web, alice.pk, session_of("alice"))
    with asking(alice, where) as stream:
        generation = stream.until("generation.snapshot")["id"]
        with other.get(f"generations/{generation}/events/", stream=True) as response:
            sign_out(alice.token)
            assert stream.until("error")["code"] == "not_signed_in"
            assert stream.next() is None
            claim = worker.claimed()
            worker.publish(claim, "Steam ")
            still = Stream(response)
            assert still.until("generation.delta")["text"] == "Steam "


def test_a_session_whose_end_nobody_told_of_ends_its_stream_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "CHECK", 0.0)
    waiting = factories.sent().generation

    async def pieces() -> list[bytes]:
        return [piece async for piece in sse.answer_from(sse.Client(waiting.owner_id, "0" * 32), waiting, None)]

    snapshot, problem = async_to_sync(pieces)()
    assert snapshot.startswith(b"event: generation.snapshot")
    assert b'"code":"not_signed_in"' in problem


def test_what_is_refused_before_it_begins_is_plain_json(alice: Person, where: Conversation) -> None:
    factories.sent(where)
    accept = {"Accept": "text/event-stream"}
    path = f"conversations/{where.pk}/messages/"
    refused(alice.post(path, {"client_id": str(uuid.uuid4()), "text": "x"}, headers=accept), 409, "turn_in_progress")
    refused(alice.post(path, {}, headers=accept), 400, "invalid")
    refused(alice.web.nobody().post(path, {}, headers=accept), 401, "not_signed_in")
    refused(alice.post(f"conversations/{uuid.uuid4()}/messages/", {}, headers=accept), 404, "not_found")


def test_many_streams_hold_no_connections(alice: Person) -> None:
    factories.server()
    accept = {"Accept": "text/event-stream"}
    streams = []  # kept: a stream that is dropped is closed
    for _ in range(20):  # more than the web process may have connections
        where = factories.conversation(factories.person("alice"))
        body = {"client_id": str(uuid.uuid4()), "text": "x"}
        streams.append(Stream(alice.post(f"conversations/{where.pk}/messages/", body, headers=accept, stream=True)))
        streams[-1].until("generation.snapshot")
    assert alice.get("conversations/").status_code == 200
    for stream in streams:
        stream.response.close()
