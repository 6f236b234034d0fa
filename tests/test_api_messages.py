"""Sending, reading and stopping over REST."""

import threading
import uuid
from typing import Any

import pytest

from conversations import history, turns
from conversations.models import Conversation, Generation, Message
from slots import leases
from slots.models import Server
from tests import factories
from tests.test_api_conversations import refused
from tests.web import Person

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def where(alice: Person) -> Conversation:
    return factories.conversation(factories.person("alice"))


def answered(where: Conversation, words: str, answer: str) -> Message:
    """A whole turn; the answer."""
    factories.sent(where, words)
    claim = turns.claim(factories.WORKER, [Server.objects.get().pk])
    assert claim
    factories.wrote(claim, answer)
    turns.finish(claim, turns.Ending(Generation.Status.DONE))
    leases.release(claim.grant, 10, 1)
    return Message.objects.get(pk=claim.message)


def test_a_message_is_accepted_and_its_generation_can_be_followed(alice: Person, where: Conversation) -> None:
    answer = alice.say(where, "How do steam engines work?")
    assert answer.status_code == 202
    sent = answer.json()
    assert set(sent) == {"message", "generation"}
    assert (sent["message"]["role"], sent["message"]["text"]) == ("user", "How do steam engines work?")
    assert sent["message"]["parent"] is None
    generation = sent["generation"]
    assert (generation["status"], generation["place"], generation["seq"], generation["text"]) == ("queued", 1, 0, "")
    assert alice.get(f"generations/{generation['id']}/").json() == generation


def test_a_generation_shows_its_text_while_it_is_written(alice: Person) -> None:
    claim = factories.running()
    factories.wrote(claim, "So ", "far")
    shown = alice.get(f"generations/{claim.generation}/").json()
    assert (shown["status"], shown["text"], shown["seq"], shown["place"]) == ("running", "So far", 2, None)


def test_a_message_left_without_parent_follows_the_last(alice: Person, where: Conversation) -> None:
    factories.server()
    last = answered(where, "One", "First answer")
    assert alice.say(where, "Two").json()["message"]["parent"] == str(last.pk)


def test_a_message_with_parent_null_begins_anew(alice: Person, where: Conversation) -> None:
    factories.server()
    answered(where, "One", "First answer")
    assert alice.say(where, "Two", parent=None).json()["message"]["parent"] is None
    page = alice.get(f"conversations/{where.pk}/messages/").json()
    assert [message["text"] for message in page["results"]] == ["Two", ""]


def test_a_message_from_a_stale_tab_makes_a_branch_and_loses_nothing(alice: Person, where: Conversation) -> None:
    factories.server()
    first = answered(where, "One", "First answer")
    answered(where, "Two", "Second answer")
    alice.say(where, "Instead of two", parent=str(first.pk))
    page = alice.get(f"conversations/{where.pk}/messages/").json()
    assert [message["text"] for message in page["results"]] == ["One", "First answer", "Instead of two", ""]
    assert Message.objects.filter(text="Second answer").exists()


@pytest.mark.parametrize(
    ("body", "status", "code", "words"),
    [
        ({"text": ""}, 400, "text_empty", "empty"),
        ({"text": "\x00 \n"}, 400, "text_empty", "empty"),
        ({"text": "x" * 200_001}, 413, "text_too_long", "200,001 characters; 200,000"),
        ({"text": 5}, 400, "invalid", "text: This must be a string"),
        ({"text": None}, 400, "invalid", "text"),
        ({"client_id": "x"}, 400, "invalid", "client_id: This must be a UUID"),
        ({"client_id": 12}, 400, "invalid", "client_id"),
        ({"client_id": None}, 400, "invalid", "client_id"),
        ({"parent": "x"}, 400, "invalid", "parent"),
        ({"parent": "00000000-0000-7000-8000-000000000000"}, 400, "parent_unknown", "parent"),
        ({"cache_prompt": False}, 400, "invalid", "cache_prompt: There is no such field"),
    ],
)
def test_a_message_that_cannot_be_is_refused_and_nothing_is_stored(
    alice: Person, where: Conversation, body: dict[str, Any], status: int, code: str, words: str
) -> None:
    said = refused(
        alice.post(
            f"conversations/{where.pk}/messages/", {"client_id": str(uuid.uuid4()), "text": "Hello", **body}
        ), status, code,
    )  # fmt: skip
    assert words in said["detail"]
    assert not Message.objects.exists()


def test_fields_that_are_missing_are_named(alice: Person, where: Conversation) -> None:
    said = refused(alice.post(f"conversations/{where.pk}/messages/", {}), 400, "invalid")
    assert set(said["errors"]) == {"client_id", "text"}


def test_a_parent_must_be_an_answer_of_this_conversation(alice: Person, where: Conversation) -> None:
    factories.server()
    question = answered(where, "One", "Answer").parent
    assert question
    elsewhere = answered(factories.conversation(factories.person("alice")), "Other", "Elsewhere")
    for parent in (question.pk, elsewhere.pk):
        refused(alice.say(where, "Two", parent=str(parent)), 400, "parent_unknown")


def test_the_same_message_sent_twice_at_once_is_one(alice: Person, where: Conversation) -> None:
    body = {"client_id": str(uuid.uuid4()), "text": "Once", "parent": None}
    answers: list[Any] = []

    def send() -> None:
        answers.append(alice.post(f"conversations/{where.pk}/messages/", body))

    threads = [threading.Thread(target=send) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["generation"]["id"] for answer in answers}) == 1
    assert Message.objects.count() == 2


def test_rest_and_websocket_know_each_others_client_ids(alice: Person, where: Conversation) -> None:
    same = str(uuid.uuid4())
    with alice.tab() as tab:
        tab.send("send", conversation=str(where.pk), client_id=same, text="Once", parent=None)
        first = tab.until("message.created")
    body = {"client_id": same, "text": "Once", "parent": None}
    again = alice.post(f"conversations/{where.pk}/messages/", body).json()
    assert again["message"]["id"] == first["messages"][0]["id"]
    body["text"] = "Twice"
    refused(alice.post(f"conversations/{where.pk}/messages/", body), 409, "client_id_reused")


def test_a_second_message_while_an_answer_is_written_is_refused_with_what_is_newer(alice: Person) -> None:
    claim = factories.running()
    factories.wrote(claim, "so far")
    said = refused(alice.say(Conversation.objects.get(pk=claim.conversation), parent=None), 409, "turn_in_progress")
    assert said["retryable"] is True
    assert said["generation"]["text"] == "so far"
    assert [message["role"] for message in said["messages"]] == ["user", "assistant"]


def test_pages_of_messages_lead_back_to_the_first(alice: Person, where: Conversation) -> None:
    factories.server()
    for number in range(5):
        answered(where, f"question {number}", f"answer {number}")
    page = alice.get(f"conversations/{where.pk}/messages/?limit=4").json()
    pages = [[message["text"] for message in page["results"]]]
    while page["next"]:
        page = alice.request("GET", page["next"].removeprefix(alice.web.address)).json()
        pages.append([message["text"] for message in page["results"]])
    assert [len(texts) for texts in pages] == [4, 4, 2]
    assert pages[0][-1] == "answer 4"
    assert [text for texts in pages[::-1] for text in texts][1::2] == [f"answer {number}" for number in range(5)]


@pytest.mark.parametrize("cursor", ["x", "%00", "5"])
def test_a_page_of_messages_that_is_none_is_refused(alice: Person, where: Conversation, cursor: str) -> None:
    refused(alice.get(f"conversations/{where.pk}/messages/?cursor={cursor}"), 400, "invalid")


def test_a_page_never_shows_messages_of_another_conversation(alice: Person, where: Conversation) -> None:
    other = factories.sent(factories.conversation(factories.person("bob")))
    page = alice.get(f"conversations/{where.pk}/messages/?cursor={other.message.pk}").json()
    assert page == {"results": [], "next": None}


def test_stopping_what_waits_ends_it_at_once(alice: Person) -> None:
    turn = factories.sent()
    shown = alice.post(f"generations/{turn.generation.pk}/cancel/").json()
    assert (shown["status"], shown["seq"]) == ("cancelled", 1)
    again = alice.post(f"generations/{turn.generation.pk}/cancel/")
    assert (again.status_code, again.json()) == (200, shown)


def test_stopping_what_runs_is_a_committed_wish_and_keeps_the_text(alice: Person) -> None:
    claim = factories.running()
    factories.wrote(claim, "kept")
    shown = alice.post(f"generations/{claim.generation}/cancel/").json()
    assert (shown["status"], shown["text"]) == ("running", "kept")
    row = Generation.objects.get(pk=claim.generation)
    assert row.stop_asked_at
    assert history.generation(row).live
