"""Nothing that was said is overwritten: other versions stand beside it, and people go back and forth between them."""

import uuid
from contextlib import closing, suppress
from typing import Any

import pytest
import requests
from django.db import connection

from conversations import branches, errors, history, sending
from conversations.models import Conversation, Message
from slots import leases
from tests import factories, worker
from tests.concurrently import at_once
from tests.test_api_conversations import refused
from tests.test_api_messages import answered
from tests.web import Person

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def where(alice: Person) -> Conversation:
    factories.server()
    return factories.conversation(factories.person("alice"))


def edit(person: Person, message: Any, text: str, **more: Any) -> requests.Response:
    return person.post(f"messages/{message}/edit/", {"client_id": str(uuid.uuid4()), "text": text}, **more)


def written(text: str) -> Message:
    """The answer that waits, written."""
    claim = worker.claimed()
    worker.publish(claim, text)
    worker.finish(claim)
    leases.release(claim.grant, 10, 1)
    return Message.objects.get(pk=claim.message)


def page(person: Person, where: Conversation) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = person.get(f"conversations/{where.pk}/messages/").json()["results"]
    return messages


def texts(person: Person, where: Conversation) -> list[str]:
    return [message["text"] for message in page(person, where)]


def show(person: Person, message: Message | None) -> requests.Response:
    assert message
    return person.post(f"messages/{message.pk}/show/")


def test_an_edited_message_is_answered_anew_and_both_stay_reachable(alice: Person, where: Conversation) -> None:
    first = answered(where, "One", "First answer")
    answered(where, "Two", "Second answer")
    accepted = edit(alice, first.parent_id, "Other one")
    assert accepted.status_code == 202
    assert accepted.json()["message"]["parent"] is None
    other = written("Other answer")
    assert texts(alice, where) == ["Other one", "Other answer"]
    versions = page(alice, where)[0]["versions"]
    assert versions == [str(first.parent_id), str(other.parent_id)]
    assert page(alice, where)[1]["versions"] == [str(other.pk)]
    assert show(alice, first.parent).status_code == 200
    assert texts(alice, where) == ["One", "First answer", "Two", "Second answer"]
    assert page(alice, where)[0]["versions"] == versions
    show(alice, other)
    assert texts(alice, where) == ["Other one", "Other answer"]
    assert Message.objects.count() == 6


def test_a_branch_is_shown_to_its_newest_end(alice: Person, where: Conversation) -> None:
    first = answered(where, "One", "First answer")
    answered(where, "Two", "Second answer")
    edit(alice, page(alice, where)[2]["id"], "Other two")
    written("Third answer")
    answered(where, "Three", "Fourth answer")
    elsewhere = edit(alice, first.parent_id, "Elsewhere").json()["generation"]["id"]
    alice.post(f"generations/{elsewhere}/cancel/")
    show(alice, first)
    assert texts(alice, where) == ["One", "First answer", "Other two", "Third answer", "Three", "Fourth answer"]


def test_the_model_is_sent_the_branch_that_is_shown(alice: Person, where: Conversation) -> None:
    first = answered(where, "One", "First answer")
    answered(where, "Two", "Second answer")
    edit(alice, first.parent_id, "Other one")
    other = written("Other answer")
    where.refresh_from_db()
    assert [turn["content"] for turn in history.prompt(where.pk, other.pk)] == ["Other one", "Other answer"]


def test_every_device_is_shown_the_version_that_was_chosen(alice: Person, where: Conversation) -> None:
    first = answered(where, "One", "First answer")
    edit(alice, first.parent_id, "Other one")
    written("Other answer")
    with alice.tab(where) as tab, alice.tab() as elsewhere:
        assert show(alice, first).status_code == 200
        snapshot = tab.until("snapshot")
        assert [message["text"] for message in snapshot["messages"]] == ["One", "First answer"]
        assert tab.answers()
        assert elsewhere.answers()
        assert "snapshot" not in [frame["type"] for frame in elsewhere.frames]


def test_while_an_answer_is_written_no_other_branch_is_gone_to(alice: Person, where: Conversation) -> None:
    first = answered(where, "One", "First answer")
    edit(alice, first.parent_id, "Other one")
    body = refused(show(alice, first), 409, "turn_in_progress")
    assert body["generation"]["status"] == "queued"
    refused(edit(alice, first.parent_id, "Yet another"), 409, "turn_in_progress")
    written("Other answer")
    assert texts(alice, where) == ["Other one", "Other answer"]


def test_only_what_a_person_said_is_edited_and_only_by_them(alice: Person, bob: Person, where: Conversation) -> None:
    first = answered(where, "One", "First answer")
    refused(edit(alice, first.pk, "Mine now"), 400, "not_a_question")
    refused(edit(alice, first.parent_id, "  "), 400, "text_empty")
    refused(edit(alice, uuid.uuid4(), "Nothing"), 404, "not_found")
    refused(edit(bob, first.parent_id, "Bob's"), 404, "not_found")
    refused(show(bob, first), 404, "not_found")
    refused(alice.post(f"messages/{first.parent_id}/edit/", {"text": "x", "parent": None}), 400, "invalid")
    assert texts(alice, where) == ["One", "First answer"]


def test_the_same_edit_twice_is_one(alice: Person, where: Conversation) -> None:
    first = answered(where, "One", "First answer")
    body = {"client_id": str(uuid.uuid4()), "text": "Other one"}
    answers = at_once(*[lambda: alice.post(f"messages/{first.parent_id}/edit/", body)] * 3)
    assert len({answer.json()["generation"]["id"] for answer in answers}) == 1
    refused(alice.post(f"messages/{first.parent_id}/edit/", {**body, "text": "Else"}), 409, "client_id_reused")
    assert Message.objects.filter(parent=None).count() == 2


def test_choosing_and_sending_at_once_leave_a_conversation_whose_end_is_an_answer(where: Conversation) -> None:
    first = answered(where, "One", "First answer")
    answered(where, "Two", "Second answer")

    def choose() -> None:
        with suppress(errors.TurnInProgress), closing(connection):
            branches.choose(first)

    def send() -> None:
        with closing(connection):
            sending.send(where.owner_id, where.pk, uuid.uuid4(), "More", None, to_leaf=True)

    for number in range(6):
        at_once(choose, send)
        where.refresh_from_db()
        assert where.leaf
        assert where.leaf.role == "assistant"
        written(f"Answer {number}")
