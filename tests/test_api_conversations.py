"""Conversations over REST."""

from typing import Any

import pytest

from conversations.models import Conversation
from tests import factories
from tests.web import Person

pytestmark = pytest.mark.django_db(transaction=True)


def refused(answer: Any, status: int, code: str) -> dict[str, Any]:
    """The body of an error, checked to have the shape all have."""
    said: dict[str, Any] = answer.json()
    assert (answer.status_code, said["code"]) == (status, code), said
    assert said["detail"].endswith((".", ")")), said
    assert isinstance(said["retryable"], bool)
    return said


def test_a_conversation_is_made_read_changed_and_removed(alice: Person) -> None:
    factories.server(model="smollm2")
    wanted = {
        "title": "Engines",
        "model": "smollm2",
        "system_prompt": "Be short.",
        "params": {"max_tokens": 64, "temperature": 0.5},
    }
    made = alice.post("conversations/", wanted)
    assert made.status_code == 201
    shown = made.json()
    assert {name: shown[name] for name in wanted} == wanted
    assert shown["created_at"].endswith("Z")
    assert alice.get(f"conversations/{shown['id']}/").json() == shown
    changed = alice.patch(f"conversations/{shown['id']}/", {"title": "Steam", "params": None}).json()
    assert (changed["title"], changed["params"], changed["system_prompt"]) == ("Steam", {}, "Be short.")
    assert changed["updated_at"] == shown["updated_at"], "its place in the list stays"
    assert alice.delete(f"conversations/{shown['id']}/").status_code == 204
    refused(alice.get(f"conversations/{shown['id']}/"), 404, "not_found")


def test_an_empty_body_makes_an_empty_conversation(alice: Person) -> None:
    shown = alice.post("conversations/", {}).json()
    assert (shown["title"], shown["model"], shown["system_prompt"], shown["params"]) == ("", "", "", {})


def test_pages_lead_through_all_of_them_newest_first(alice: Person) -> None:
    made = [str(factories.conversation(factories.person("alice")).pk) for _ in range(7)]
    factories.conversation(factories.person("bob"))
    seen, page = [], alice.get("conversations/?limit=3").json()
    while True:
        seen += [row["id"] for row in page["results"]]
        if not page["next"]:
            break
        factories.conversation(factories.person("alice"))  # newer ones do not shift the pages that follow
        page = alice.request("GET", page["next"].removeprefix(alice.web.address)).json()
    assert seen == made[::-1]


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=101", "limit=-1", "limit=x", "limit=1e9", "limit=٣", "limit=" + "9" * 5000, "cursor=x",
     "cursor=%00", "cursor=AAAA", "cursor=OTk5OTktMTItMzEgeA==", "cursor=MDAwMS0wMS0wMVQwMDowMDowMCswMDowMCAx"],
)  # fmt: skip
def test_a_page_that_is_none_is_refused(alice: Person, query: str) -> None:
    said = refused(alice.get(f"conversations/?{query}"), 400, "invalid")
    assert query.partition("=")[0] in said["errors"]


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"title": 5}, "title", "a string, not a number"),
        ({"title": None}, "title", "null"),
        ({"title": "x" * 201}, "title", "201 characters; 200"),
        ({"system_prompt": ["x"]}, "system_prompt", "a list"),
        ({"system_prompt": "x" * 20_001}, "system_prompt", "20,001 characters; 20,000"),
        ({"model": "gpt-9"}, "model", "smollm2"),
        ({"model": True}, "model", "true or false"),
        ({"params": []}, "params", "an object, not a list"),
        ({"params": {"cache_prompt": True}}, "params", "“cache_prompt” is no parameter"),
        ({"titel": "x"}, "titel", "no such field"),
        ({"id": "00000000-0000-7000-8000-000000000000"}, "id", "no such field"),
        ({"owner": 1}, "owner", "no such field"),
        ([], "non_field_errors", "a JSON object, not a list"),
        ("x", "non_field_errors", "a JSON object, not a string"),
        (5, "non_field_errors", "a JSON object, not a number"),
    ],
)
def test_what_is_wrong_with_a_body_is_said_by_field(alice: Person, body: Any, field: str, words: str) -> None:
    factories.server(model="smollm2")
    existing = factories.conversation(factories.person("alice"))
    for answer in (alice.post("conversations/", body), alice.patch(f"conversations/{existing.pk}/", body)):
        said = refused(answer, 400, "invalid")
        assert words in " ".join(said["errors"][field])
        assert words in said["detail"]
    assert Conversation.objects.count() == 1


def test_without_a_server_only_an_empty_model_can_be_named(alice: Person) -> None:
    said = refused(alice.post("conversations/", {"model": "smollm2"}), 400, "invalid")
    assert "none at the moment" in said["detail"]


def test_several_wrong_fields_are_all_named(alice: Person) -> None:
    said = refused(alice.post("conversations/", {"title": 5, "params": {"n": 1, "top_k": "2"}}), 400, "invalid")
    assert set(said["errors"]) == {"title", "params", "params.top_k"}


def test_what_postgres_cannot_store_is_cleaned_wherever_text_comes_in(alice: Person) -> None:
    odd = "a\x00b \ud800 \U0001f600"
    shown = alice.post("conversations/", {"title": odd, "system_prompt": odd}).json()
    assert shown["title"] == shown["system_prompt"] == "ab � \U0001f600"
    said = refused(alice.post("conversations/", {"params": {odd: 1}}), 400, "invalid")
    assert "“ab � \U0001f600” is no parameter" in said["detail"]
    refused(alice.post("conversations/", {odd: 1}), 400, "invalid")
    refused(alice.post("conversations/", {"model": odd}), 400, "invalid")


@pytest.mark.parametrize("id_", ["x", "5", "0" * 31, "%00", "..%2f", "00000000-0000-7000-8000-00000000000Fx"])
def test_an_id_that_is_none_is_not_found(alice: Person, id_: str) -> None:
    for path in (f"conversations/{id_}/", f"conversations/{id_}/messages/", f"generations/{id_}/"):
        refused(alice.get(path), 404, "not_found")
