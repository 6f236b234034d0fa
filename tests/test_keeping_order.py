"""Pinned conversations first, archived ones out of the way, everything else where it was."""

from typing import Any

import pytest

from conversations.models import Conversation, Message
from tests import factories
from tests.test_api_conversations import refused
from tests.web import Person

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def made(alice: Person) -> list[Conversation]:
    """Five of Alice's, the oldest first, in each of which something was said."""
    made = [factories.conversation(factories.person("alice"), title=f"Number {number}") for number in range(5)]
    for where in made:
        Message.objects.create(conversation=where, role="user", text="engine")
    return made


def pages(alice: Person, path: str) -> list[list[dict[str, Any]]]:
    """Every page that `path` leads to."""
    found, page = [], alice.get(path).json()
    while page["next"]:
        found.append(page["results"])
        page = alice.request("GET", page["next"].removeprefix(alice.web.address)).json()
    return [*found, page["results"]]


def titles(alice: Person, path: str = "conversations/?limit=2") -> str:
    return "".join(row["title"][-1] for page in pages(alice, path) for row in page)


def test_pinned_ones_come_first_on_every_page_and_nothing_else_moves(alice: Person, made: list[Conversation]) -> None:
    with alice.tab() as tab:
        for number in (3, 0, 1):
            changed = alice.patch(f"conversations/{made[number].pk}/", {"pinned": True, "title": f"Renamed {number}"})
            assert changed.json()["pinned"] is True
            assert tab.expect("conversation.updated")["conversation"] == changed.json()
    assert titles(alice) == "31042"
    assert [len(page) for page in pages(alice, "conversations/?limit=3")] == [3, 2]
    alice.patch(f"conversations/{made[3].pk}/", {"pinned": False})
    assert titles(alice) == "10432"


def test_archived_ones_are_listed_apart_and_found_all_the_same(alice: Person, made: list[Conversation]) -> None:
    for number in (1, 3):
        alice.patch(f"conversations/{made[number].pk}/", {"archived": True})
    alice.patch(f"conversations/{made[1].pk}/", {"pinned": True})
    assert titles(alice) == "420"
    assert titles(alice, "conversations/?limit=1&archived=true") == "13"
    hits = alice.get("search/?q=engine").json()["results"]
    assert [hit["conversation"]["archived"] for hit in hits] == [False, True, False, True, False]
    assert "archived" in refused(alice.get("conversations/?archived=yes"), 400, "invalid")["errors"]


@pytest.mark.parametrize("to_leaf", [True, False])
def test_who_says_something_in_an_archived_one_has_it_back_on_top(
    alice: Person, made: list[Conversation], to_leaf: bool
) -> None:
    """By both ways that a send may take: the second names a parent that is not the newest answer."""
    answer = factories.sent(made[1]).generation
    alice.post(f"generations/{answer.pk}/cancel/")
    factories.sent(made[1], "Another one")
    Conversation.objects.filter(pk=made[1].pk).update(archived=True)
    alice.post(f"generations/{made[1].generations.latest('pk').pk}/cancel/")
    with alice.tab() as tab:
        assert alice.say(made[1], **({} if to_leaf else {"parent": str(answer.message_id)})).status_code == 202
        assert tab.until("conversation.updated")["conversation"]["archived"] is False
    assert titles(alice)[0] == "1"
    assert titles(alice, "conversations/?archived=true") == ""


@pytest.mark.parametrize("body", [{"pinned": 1}, {"archived": "true"}])
def test_what_is_neither_true_nor_false_is_refused(alice: Person, made: list[Conversation], body: Any) -> None:
    said = refused(alice.patch(f"conversations/{made[0].pk}/", body), 400, "invalid")
    assert "true or false" in said["detail"]
