"""Text comes through as it was written, all the way and back: from the box to the model and from the model to the page.

What Postgres and UTF-8 cannot hold (NUL, lone surrogates) is cleaned where it comes in; nothing else is ever changed.
"""

import itertools
import json
import uuid
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from conversations import text, titles
from conversations.models import Conversation, Preset
from slots.client import LlamaServer, Stream
from slots.control_tokens import BREAK
from tests import factories
from tests.fake_llama import FakeLlama, Script
from tests.scripted.sse import event
from tests.scripted.web import Connection
from tests.stack import StartProcess
from tests.web import Person

HARD = [
    "\x00", "\ud83d", "\ude00", "\ud800", "\udfff",  # what cannot be stored
    "e\u0301", "\u0301", "\u202eabc\u202c", "שלום", "مرحبا", "\u200d", "\u200b", "\ufeff", "\ufffd",
    "👩🏽‍🚀", "🇩🇪", "\U0010ffff", "𝕏", "\u2028", "\u2029", "\x85", "\r\n", "\r", "\t", "\x1b[0m", "\x7f",
    "data: ", "\n\n", "<|im_end|>", "</think>", "\\u0000", "'\"`", "%00", "&amp;", "{{x}}",
]  # fmt: skip
# Where an example takes a second, finding a smaller one would take minutes.
COSTLY = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow], phases=[Phase.explicit, Phase.reuse, Phase.generate]
)
PIECE = st.sampled_from(HARD) | st.text(st.characters(exclude_categories=()), max_size=6)
WORDS = st.lists(PIECE, min_size=1, max_size=8).map("".join)
# A control token ends what a model says, and a thought is another part: tests of their own.
SPOKEN = [piece for piece in HARD if "|" not in piece and "think" not in piece]
ANSWER = st.lists(st.sampled_from(SPOKEN), min_size=1, max_size=12)
ALL = "".join(HARD)


def said(words: str) -> bool:
    return bool(text.clean(words).strip()) and "[[" not in words


class Raw:
    """A connection that gives `data` in these pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = iter([*pieces, b""])

    def read1(self, _: int) -> bytes:
        return next(self._pieces)


class Response:
    def __init__(self, pieces: list[bytes]) -> None:
        self.raw = Raw(pieces)
        self.closed = False

    def close(self) -> None:
        self.closed = True


def cut(data: bytes, at: list[int]) -> list[bytes]:
    """`data` in pieces, none empty."""
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in at)})
    return [data[begin:end] for begin, end in itertools.pairwise(places)]


@given(st.lists(WORDS, max_size=6), st.lists(st.integers(0, 10_000), max_size=40), st.booleans())
@example([ALL], list(range(10_000)), True)
@example([*ALL], list(range(10_000)), False)
def test_a_stream_cut_anywhere_says_the_same(pieces: list[str], at: list[int], escaped: bool) -> None:
    """Also within a character, an escape, a line end; `escaped`: as JSON in ASCII, which a server may send too.

    And where the rest is read on another socket after the first words.
    """
    pieces = [text.clean(piece) for piece in pieces]
    chunks = [{"choices": [{"delta": {"content": piece}}]} for piece in pieces]
    sent = [b"data: " + json.dumps(chunk).encode() + b"\n\n" if escaped else event(chunk) for chunk in chunks]
    data = b"".join([*sent, b": a comment\n\n", b"data: [DONE]\n\n"])
    server = LlamaServer("http://llama.test")
    for reopen in (None, lambda offset: Response(cut(data[offset:], at))):
        stream = Stream(Response(cut(data, at)), 0, uuid.UUID(int=1), server, reopen)
        *events, done = stream.events()
        assert [one.text for one in events] == pieces
    assert (done.done, done.end) == (True, len(data))


@given(WORDS)
def test_what_is_cleaned_is_clean_and_nothing_else_is_changed(words: str) -> None:
    clean = text.clean(words)
    assert text.clean(clean) == clean
    assert clean.encode().decode() == clean
    assert "\x00" not in clean
    # What was a pair of surrogates is a character; of lone ones each becomes a mark; the rest is there, in its order.
    halves = words.replace("\x00", "").encode("utf-16-le", "surrogatepass")
    assert clean == halves.decode("utf-16-le", "replace")
    if not any(c == "\x00" or "\ud800" <= c <= "\udfff" for c in words):
        assert clean == words


@pytest.fixture
def byte_by_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripted server sends every byte of a stream by itself."""
    whole = Connection.chunk

    async def chunk(self: Connection, data: bytes) -> None:
        for at in range(len(data)):
            await whole(self, data[at : at + 1])

    monkeypatch.setattr(Connection, "chunk", chunk)


@pytest.fixture
def where(byte_by_byte: None, fake_llama: FakeLlama, start_worker: StartProcess) -> Conversation:
    start_worker(LLAMA_SERVERS=fake_llama.url)
    return factories.conversation(factories.person("alice"))


@pytest.mark.django_db(transaction=True)
def test_words_come_to_the_model_and_back_to_every_device_as_they_were_written(
    alice: Person, fake_llama: FakeLlama, where: Conversation
) -> None:
    @settings(COSTLY, max_examples=10)
    @given(WORDS.filter(said), ANSWER, st.sets(st.integers(0, 200)))
    @example(ALL, list(ALL[ALL.index("e") : ALL.index("data: ")]), set())
    def through(words: str, spoken: list[str], cuts: set[int]) -> None:
        pieces = _cut_into_pieces("".join(spoken), cuts)
        fake_llama.script(Script(pieces=tuple(pieces), times=1))
        answer = text.clean("".join(pieces).encode("utf-8", "replace").decode())
        client_id = str(uuid.uuid4())
        with alice.tab(where) as tab:
            tab.send("send", conversation=str(where.pk), client_id=client_id, text=words)
            done = tab.until("generation.done", 20)
            assert tab.shown[done["generation"]] == answer
        question, reply = alice.get(f"conversations/{where.pk}/messages/?limit=2").json()["results"]
        assert (question["text"], reply["text"]) == (text.clean(words), answer)
        sent = fake_llama.requests[-1].body["messages"][-1]["content"]
        assert sent.replace(BREAK, "").endswith(text.clean(words).replace(BREAK, ""))
        with alice.tab(where) as tab:  # as a snapshot
            assert tab.shown[done["generation"]] == answer
        stream = alice.post(
            f"conversations/{where.pk}/messages/", {"client_id": client_id, "text": words},
            headers={"Accept": "text/event-stream"},
        )  # fmt: skip
        events = [json.loads(line[6:]) for line in stream.content.split(b"\n") if line.startswith(b"data: ")]
        assert [one["text"] for one in events if one["type"] == "generation.snapshot"] == [answer]

    through()


def _cut_into_pieces(spoken: str, cuts: set[int]) -> list[str]:
    """Model tokens, which may end anywhere: what is no whole character llama-server holds back."""
    places = sorted({0, len(spoken), *(place for place in cuts if place < len(spoken))})
    return [spoken[begin:end] for begin, end in itertools.pairwise(places)]


@pytest.mark.django_db(transaction=True)
def test_no_words_anywhere_are_a_fault_of_ours(alice: Person) -> None:
    """System prompts, titles, names of presets, and what is searched for."""

    @settings(COSTLY, max_examples=20)
    @given(WORDS)
    @example(ALL)
    def anywhere(words: str) -> None:
        clean = text.clean(words)
        made = alice.post("conversations/", {"title": words[:200], "system_prompt": words}).json()
        assert (made["title"], made["system_prompt"]) == (text.clean(words[:200]), clean)
        preset = alice.post("presets/", {"name": words[:90], "system_prompt": words, "params": {"stop": [words[:90]]}})
        assert preset.status_code == (201 if text.clean(words[:90]).strip() else 400), preset.text
        if preset.status_code == 201:
            saved = Preset.objects.get(pk=preset.json()["id"])
            assert (saved.name, saved.system_prompt) == (text.clean(words[:90]).strip(), clean)
            saved.delete()
        turn = factories.sent(Conversation.objects.get(pk=made["id"]), words) if clean.strip() else None
        if turn:
            assert turn.message.text == clean
            Conversation.objects.filter(pk=made["id"]).update(title=titles.title_of(clean))
        found = alice.get(f"search/?q={quote(words, errors='surrogatepass')}")
        assert found.status_code in (200, 400), found.text
        Conversation.objects.filter(pk=made["id"]).delete()

    anywhere()
