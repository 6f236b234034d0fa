"""People find what was said in their own conversations, and in nobody else's."""

import unicodedata
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversations import search
from conversations.models import Conversation, Message
from conversations.search import Marker
from tests import factories
from tests.test_api_conversations import refused
from tests.web import Person

pytestmark = pytest.mark.django_db(transaction=True)


def said(text: str, name: str = "alice", title: str = "", where: Conversation | None = None) -> Message:
    where = where or factories.conversation(factories.person(name), title=title)
    return Message.objects.create(conversation=where, role="user", text=text)


def found(query: str, name: str = "alice") -> list[uuid.UUID]:
    return [hit.conversation.pk for hit in search.search(factories.person(name).pk, query, 50)]


def marked(pieces: list[Any]) -> str:
    return "".join(f"[{text}]" if match else text for text, match in pieces)


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("The Hôtel by the sea", "hotel"),
        ("The hotel by the sea", "HÔTEL"),
        ("A locomotive", "comot"),
        (unicodedata.normalize("NFD", "Crème brûlée"), "brulee"),
        ("Crème brûlée", unicodedata.normalize("NFD", "crème")),
        ("Łódź, Ærø and Straße", "lodz aero strasse"),
        ("Ёлка", "елк"),
        ("機関車について", "機関"),
        ("ประเทศไทย", "ไท"),
        ("한국어 문장", "국어"),
        ("the ﬁrst ﬂoor", "first floor"),
        ("100 % of a_b \\ c", "100 %"),
        ("100 % of a_b \\ c", "a_b"),
        ("say 'x' \\ y; DROP TABLE", "\\ drop"),
        ("first the one, then the other", '"the one"'),
        ("a rocket 🚀 flies", "🚀 rocket"),
    ],
)
def test_what_was_said_is_found_however_it_is_written(text: str, query: str) -> None:
    said("Something else entirely")
    where = said(text).conversation_id
    assert found(query) == [where]


@pytest.mark.parametrize("query", ["engine steam x", '"engine steam"', "locomotives", "100%", "a_b", "ste.m", "%%%"])
def test_what_was_not_said_is_not_found(query: str) -> None:
    said("A steam engine, 100 percent, azb")
    assert found(query) == []


def test_all_of_it_must_be_in_one_message_or_in_the_title() -> None:
    where = said("steam").conversation
    said("engine", where=where)
    assert found("steam engine") == []
    titled = said("x", title="Steam engines")
    (hit,) = search.search(titled.conversation.owner_id, "engine steam", 5)
    assert (hit.conversation.pk, hit.message, hit.messages, hit.excerpt) == (titled.conversation_id, None, 0, [])
    assert marked(hit.title) == "[Steam] [engine]s"


def test_nobody_finds_what_is_somebody_else_s() -> None:
    said("the dragon's secret", name="bob")
    assert found("secret") == []
    assert found("secret", name="bob")


def test_the_newest_message_is_shown_around_what_was_found() -> None:
    where = said("An engine.").conversation
    newest = said(f"{'before ' * 40}\n\nthe **Éngine** and the engine {'after ' * 60}", where=where)
    (hit,) = search.search(where.owner_id, "engine", 5)
    assert (hit.message, hit.messages) == (newest.pk, 2)
    shown = marked(hit.excerpt)
    assert "before the **[Éngine]** and the [engine] after" in shown
    assert shown.startswith("… before")
    assert shown.endswith("after …")
    assert len(shown) < search.BEFORE + search.AFTER + 12


@given(text=st.text(max_size=300), query=st.text(min_size=3, max_size=5))
def test_marking_loses_no_letter(text: str, query: str) -> None:
    """With a folding that makes letters more, fewer, and none."""
    letters = {"ß": "ss", "a": "", "b": "bbb"}
    folded = "".join(letters.get(letter, letter) for letter in query)
    pieces = Marker([folded or "x"], letters).all(text)
    assert "".join(piece.text for piece in pieces) == text
    assert all(piece.text for piece in pieces)


def test_a_search_over_rest_is_paged_and_what_comes_meanwhile_shifts_nothing(alice: Person) -> None:
    made = [str(said(f"engine {number}").conversation_id) for number in range(5)]
    seen, page = [], alice.get("search/?q=ENGINE&limit=2").json()
    while True:
        seen += [hit["conversation"]["id"] for hit in page["results"]]
        if not page["next"]:
            break
        said("engine again")
        page = alice.request("GET", page["next"].removeprefix(alice.web.address)).json()
    assert seen == made[::-1]
    hit = alice.get("search/?q=engine%204").json()["results"][0]
    assert hit["excerpt"] == [
        {"text": "engine", "match": True},
        {"text": " ", "match": False},
        {"text": "4", "match": True},
    ]
    assert (hit["title"], hit["role"], hit["messages"]) == ([], "user", 1)


@pytest.mark.parametrize("query", ["", "ab", "a b", "車", "x" * 201, "a " * 11, "%CC%80%CC%80%CC%80", "%00%00%00"])
def test_what_cannot_be_searched_for_is_refused_with_a_sentence(alice: Person, query: str) -> None:
    body = refused(alice.get(f"search/?q={query}"), 400, "invalid")
    assert body["errors"]["q"] == [body["detail"]]
    refused(alice.get("search/"), 400, "invalid")


def test_a_nul_in_the_query_is_as_absent_as_in_what_is_stored(alice: Person) -> None:
    alice.say(factories.conversation(factories.person("alice")), "a\x00bcd")
    assert len(alice.get("search/?q=ab%00cd").json()["results"]) == 1


def test_who_is_signed_out_finds_nothing(web: Any) -> None:
    refused(web.nobody().get("search/?q=engine"), 401, "not_signed_in")
