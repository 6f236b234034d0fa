"""Server-sent events in place of a websocket: the same frames, for whoever gets none through."""

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from asgiref.sync import async_to_sync

from conversations import events
from conversations.api import socketless
from conversations.models import Conversation
from tests import factories, worker
from tests.web import Frame, Person, Tab, session_of, sign_out

pytestmark = pytest.mark.django_db(transaction=True)


class Down:
    """A stream, read as `Tab` reads its socket."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._lines = lines

    def recv(self, timeout: float) -> str:
        for line in self._lines:
            name, _, data = line.decode().partition(": ")
            if name == "data":
                return data
        raise EOFError

    def send(self, text: str) -> None:
        raise AssertionError("nothing can be sent this way")


@contextmanager
def following(person: Person, where: Conversation | None = None, **more: str) -> Iterator[Tab]:
    query = {"conversation": str(where.pk)} if where else {}
    with person.get("events/", params={**query, **more}, stream=True) as response:
        assert response.status_code == 200, response.text
        assert response.headers["Content-Type"] == "text/event-stream"
        assert response.headers["X-Accel-Buffering"] == "no"
        tab = Tab(Down(response.iter_lines(chunk_size=None)))  # type: ignore[arg-type]
        tab.expect("ready")
        yield tab


def test_whoever_follows_a_conversation_sees_what_a_socket_sees(alice: Person) -> None:
    factories.server()
    where = factories.conversation(factories.person("alice"))
    with following(alice, where, html="true") as stream, alice.tab(where) as tab:
        assert stream.expect("snapshot")["messages"] == []
        alice.say(where)
        claim = worker.claimed()
        worker.publish(claim, "Heat ", "makes ", "steam 😀.")
        worker.finish(claim)
        tab.until("generation.done")
        stream.until("message.created")
        stream.has(claim.generation, tab.seq[str(claim.generation)])
        assert (stream.shown, stream.status) == (tab.shown, tab.status)
        assert stream.until("message.html")


def test_without_a_conversation_it_tells_what_becomes_of_the_list(alice: Person) -> None:
    with following(alice) as stream:
        made = alice.post("conversations/", {"title": "New"}).json()
        assert stream.expect("conversation.updated")["conversation"] == made


def test_a_stream_ends_with_its_session(alice: Person) -> None:
    other = Person(alice.web, alice.pk, session_of("alice"))
    with following(other) as stream:
        sign_out(other.token)
        assert stream.until("error")["code"] == "not_signed_in"  # at its next ping
        with pytest.raises(EOFError):
            stream.next()


@pytest.mark.parametrize(
    ("asked", "status", "code"),
    [
        ({"conversation": str(uuid.UUID(int=7))}, 404, "not_found"),
        ({"conversation": "seven"}, 400, "invalid"),
        ({"html": "yes"}, 400, "invalid"),
    ],
)
def test_what_cannot_be_followed_is_refused_before_it_begins(
    alice: Person, asked: dict[str, str], status: int, code: str
) -> None:
    answer = alice.get("events/", params=asked, stream=True)
    assert answer.status_code == status  # else it would be read without end
    assert answer.json()["code"] == code


def test_another_s_conversation_does_not_exist(alice: Person, bob: Person) -> None:
    where = factories.conversation(factories.person("alice"))
    assert bob.get("events/", params={"conversation": str(where.pk)}).status_code == 404


def test_it_is_heard_while_nothing_happens_and_nobody_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socketless, "PING_SECONDS", 0.01)

    async def listens_and_goes() -> list[Frame]:
        stream = socketless.stream(key, None, html=False)
        heard = [json.loads((await anext(stream)).decode().removeprefix("data: ")) for _ in range(4)]
        listening = len(events._feeds)
        await stream.aclose()  # type: ignore[attr-defined]
        assert listening - len(events._feeds) == 1
        return heard

    key = session_of("alice")
    assert [frame["type"] for frame in async_to_sync(listens_and_goes)()] == ["ready", "pong", "pong", "pong"]


def test_an_answer_goes_on_from_the_last_event_that_a_client_has(alice: Person) -> None:
    factories.server()
    where = factories.conversation(factories.person("alice"))
    alice.say(where)
    claim = worker.claimed()
    worker.publish(claim, "one ")
    worker.publish(claim, "two ")
    path = f"generations/{claim.generation}/events/"
    with alice.get(path, headers={"Last-Event-ID": "1"}, stream=True) as response:
        tab = Tab(Down(response.iter_lines(chunk_size=None)))  # type: ignore[arg-type]
        tab.seq[str(claim.generation)], tab.shown[str(claim.generation)] = 1, "one "
        tab.status[str(claim.generation)] = "running"
        assert tab.expect("generation.delta")["text"] == "two "
        worker.publish(claim, "three")
        tab.expect("generation.delta")
        worker.finish(claim)
        assert tab.expect("generation.done")["seq"] == 4
        with pytest.raises(EOFError):
            tab.next()
        assert tab.shown[str(claim.generation)] == "one two three"
    assert alice.get(path, headers={"Last-Event-ID": "4"}).status_code == 204
    for last in ("2", "nonsense", "99999999999999999999", ""):
        whole = alice.get(path, headers={"Last-Event-ID": last}).text
        assert "one two three" in whole
        assert whole.count("generation.snapshot") == 2  # its name and its type
