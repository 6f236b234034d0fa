"""Which sockets a server is asked on, and an answer is read from."""

import json
import socketserver
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pytest

from slots.client import LlamaServer, ServerFailed, ServerUnreachable, StreamBroken, StreamUnknown
from slots.streams import Stream
from tests.fake_llama import FakeLlama, Script

PROGRESS = b'data: {"choices": [{"delta": {}}], "prompt_progress": {"total": 9, "cache": 0, "processed": 4}}\n\n'
DONE = b"data: [DONE]\n\n"


def said(words: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": words}}]}).encode() + b"\n\n"


class Body:
    """A body that arrives in these pieces; then its socket is at its end, or is shut down from elsewhere."""

    def __init__(self, *pieces: bytes) -> None:
        self.raw, self._pieces = self, list(pieces)
        self.closed = self.shut = False

    def read1(self, _: int) -> bytes:
        return self._pieces.pop(0) if self._pieces and not self.shut else b""

    def shutdown(self) -> None:
        self.shut = True

    def close(self) -> None:
        self.closed = True


def stream(first: Body, reopen: Callable[[int], Body]) -> Stream:
    return Stream(first, 0, uuid.UUID(int=1), LlamaServer("http://llama.test"), reopen)


def words(events: Iterable[object]) -> list[str]:
    return [text for event in events if (text := getattr(event, "text", ""))]


def test_the_first_socket_is_left_for_another_once_there_is_more_than_the_first_words() -> None:
    first, second = Body(PROGRESS, said("One"), said(" two") + said(" th")[:9]), Body(said(" three") + DONE)
    asked: list[int] = []

    def reopen(offset: int) -> Body:
        asked.append(offset)
        return second

    with stream(first, reopen) as read:
        events = read.events()
        assert next(events).progress
        assert words([next(events), next(events)]) == ["One", " two"]
        assert not asked, "nothing stands in front of the first words, or beside their being stored"
        assert words(events) == [" three"]
    assert asked == [len(PROGRESS + said("One") + said(" two"))]
    assert first.closed
    assert second.closed


def test_a_server_without_the_route_is_read_to_the_end_where_it_began() -> None:
    def reopen(offset: int) -> Body:
        raise StreamUnknown("404")

    first = Body(said("One"), said(" two"), DONE)
    assert words(stream(first, reopen).events()) == ["One", " two"]


@pytest.mark.parametrize("error", [ServerUnreachable, ServerFailed])
def test_a_server_that_goes_away_in_between_has_broken_off_an_answer_and_is_not_taken_for_one_that_was_not_asked(
    error: type[Exception],
) -> None:
    def reopen(offset: int) -> Body:
        raise error("gone")

    events = stream(Body(said("One"), said(" two"), DONE), reopen).events()
    assert next(events)
    assert next(events)
    with pytest.raises(StreamBroken):
        list(events)


def test_who_drops_it_while_it_changes_sockets_is_obeyed() -> None:
    def reopen(offset: int) -> Body:
        read.drop()
        return Body(said(" three"), DONE)

    read = stream(Body(said("One"), said(" two"), said("!")), reopen)
    with pytest.raises(StreamBroken):
        words(read.events())


def test_on_a_server_it_is_one_answer_without_a_gap(fake_llama: FakeLlama) -> None:
    fake_llama.script(Script(text=" ".join(map(str, range(60))), rate=200))
    body = {"messages": [{"role": "user", "content": "Count."}], "stream": True, "id_slot": 0}
    with LlamaServer(fake_llama.url).post(body, uuid.uuid4()) as read:
        assert "".join(words(read.events())) == " ".join(map(str, range(60)))
    paths = [call.partition("?")[0] for call in fake_llama.journal.calls]
    assert paths[-2:] == ["POST /v1/chat/completions", "GET /v1/stream"]


@contextmanager
def closes_at_the_second_request() -> Iterator[tuple[str, list[str]]]:
    """A server that keeps each connection for one answer, and closes it without a word when it is asked again."""
    asked: list[str] = []
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n[]"

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for reply in (answer, b""):
                lines = list(iter(self.rfile.readline, b"\r\n"))
                asked.append(lines[0].split()[0].decode() if lines[0] else "")
                self.wfile.write(reply)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
        server.shutdown()


def test_what_is_asked_on_a_connection_that_is_just_being_closed_is_asked_again_unless_it_might_be_done_twice() -> None:
    with closes_at_the_second_request() as (url, asked):
        server = LlamaServer(url)
        assert server.slots() == server.slots() == []
        assert asked == ["GET"] * 3
        with pytest.raises(StreamBroken):
            server.tokens("hello")
        assert asked[3:] == ["POST"]


def test_of_a_server_that_does_not_tell_its_weights_none_are_known(fake_llama: FakeLlama) -> None:
    assert LlamaServer(fake_llama.url).weights()
    assert LlamaServer(f"{fake_llama.url}/elsewhere").weights() == ""


def test_a_file_may_be_larger_than_a_count_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"n_saved": 20_000, "n_written": 20_000 * 131_072}
    monkeypatch.setattr(LlamaServer, "_json", lambda *_, **__: told)
    assert LlamaServer("http://127.0.0.1").saved(0, "file") == (20_000, 2_621_440_000)
    told["n_saved"] = 2**31
    with pytest.raises(ServerFailed):
        LlamaServer("http://127.0.0.1").saved(0, "file")
