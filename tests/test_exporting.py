"""Conversations leave as files: everything there is as JSON, what is shown as Markdown."""

import json
from typing import Any

import pytest
import requests
from django.db import connection

from conversations.models import Conversation, Generation, Message
from conversations.transfer import exporting
from conversations.transfer.names import file_name
from tests import factories, worker
from tests.test_api_conversations import refused
from tests.test_api_messages import answered
from tests.web import Person

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def where(alice: Person) -> Conversation:
    """Alice's, with two branches; an answer is being written on the one that is shown."""
    factories.server()
    params = {"max_tokens": 64}
    where = factories.conversation(factories.person("alice"), title="Of \U0001f409 & Co.", params=params, pinned=True)
    answered(where, "First branch", "An answer.")
    factories.sent(where, "How?")
    claim = worker.claimed()
    factories.wrote(claim, "Think", part=1)
    factories.wrote(claim, "So ", "far")
    return Conversation.objects.get(pk=where.pk)


def content(answer: requests.Response) -> Any:
    assert answer.status_code == 200
    return answer.json()


def test_the_json_has_all_there_is(alice: Person, where: Conversation) -> None:
    answer = alice.get(f"conversations/{where.pk}/export/?as=json")
    assert answer.headers["Content-Type"] == "application/json"
    assert "attachment; filename*=utf-8''Of%20%F0%9F%90%89%20" in answer.headers["Content-Disposition"]
    (found,) = content(answer)["conversations"]
    shown = alice.get(f"conversations/{where.pk}/").json()
    assert {name: found[name] for name in shown} == shown
    assert found["leaf"] == found["messages"][-1]["id"]
    assert [(one["role"], one["text"], one["reasoning"]) for one in found["messages"]] == [
        ("user", "First branch", ""), ("assistant", "An answer.", ""),
        ("user", "How?", ""), ("assistant", "So far", "Think"),
    ]  # fmt: skip
    assert [one["parent"] for one in found["messages"]] == [None, *[one["id"] for one in found["messages"][:-1]]]
    first, second = (found["messages"][at]["generations"][0] for at in (1, 3))
    assert (first["status"], first["kind"], second["status"], second["finished_at"]) == (
        "done",
        "send",
        "running",
        None,
    )
    assert "generations" not in found["messages"][0]


def test_everything_of_a_person_is_one_file_and_nobody_else_s_is_in_it(alice: Person, where: Conversation) -> None:
    factories.conversation(factories.person("alice"), title="Archived", archived=True)
    factories.conversation(factories.person("bob"), title="Secret")
    deleted = factories.conversation(factories.person("alice"), title="Deleted")
    alice.delete(f"conversations/{deleted.pk}/")
    answer = alice.get("export/")
    assert [one["title"] for one in content(answer)["conversations"]] == [where.title, "Archived"]
    assert "Conversations 20" in answer.headers["Content-Disposition"]
    nothing = alice.web.person("charlie").get("export/")
    assert content(nothing)["conversations"] == []


def test_a_long_conversation_is_read_page_by_page(alice: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    where = factories.conversation(factories.person("alice"))
    made = [Message(conversation=where, role="user", text=f"{number}" * 50) for number in range(25)]
    Message.objects.bulk_create(made)
    monkeypatch.setattr(exporting, "PAGE", 10)
    monkeypatch.setattr(exporting, "PIECE", 500)
    document = exporting.document(Conversation.objects.filter(pk=where.pk))
    pieces = list(exporting._gathered(document))
    assert max(map(len, pieces)) < 1000
    (found,) = json.loads("".join(pieces))["conversations"]
    assert [one["id"] for one in found["messages"]] == [str(one.pk) for one in made]


def test_the_markdown_is_the_path_that_is_shown_to_read(alice: Person, where: Conversation) -> None:
    Conversation.objects.filter(pk=where.pk).update(system_prompt="Be short.\nBe kind.")
    other = Message.objects.create(conversation=where, role="user", text="Another branch")
    Message.objects.filter(text="How?").update(notes=["Attachment: photo.png"])
    answer = alice.get(f"conversations/{where.pk}/export/?as=markdown")
    assert answer.headers["Content-Type"] == "text/markdown; charset=utf-8"
    assert ".md" in answer.headers["Content-Disposition"]
    said = answer.content.decode()
    assert said.startswith("# Of \U0001f409 & Co.\n\n> **System prompt**\n>\n> Be short.\n> Be kind.\n\n## You, 20")
    assert said.endswith("UTC\n\nSo far\n")
    assert "> Attachment: photo.png\n\nHow?" in said
    assert "Think" not in said
    assert other.text not in said


def test_another_form_than_there_is_is_refused(alice: Person, where: Conversation) -> None:
    assert (
        "json or markdown" in refused(alice.get(f"conversations/{where.pk}/export/?as=pdf"), 400, "invalid")["detail"]
    )


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Steam engines", "Steam engines.json"),
        ("../../etc/passwd", "etc passwd.json"),
        ('a"b\r\nSet-Cookie: x=y', "a b Set-Cookie x=y.json"),
        ("C:\\con", "C con.json"),
        ("CON", "conversation CON.json"),
        ("...", "conversation.json"),
        ("", "conversation.json"),
        ("gpj.\u202eexe", "gpj.exe.json"),
        ("機関車" * 100, "機関車" * 20 + ".json"),
        ("x" * 300, "x" * 80 + ".json"),
    ],
)
def test_a_file_has_a_name_that_every_system_takes(title: str, name: str) -> None:
    assert file_name(title, "json") == name


def test_what_ran_is_exported_with_its_figures(alice: Person, where: Conversation) -> None:
    figures = {"usage": {"prompt_tokens": 5, "completion_tokens": 7}, "timings": {"ttft_ms": 12}, "error": None}
    Generation.objects.filter(status="done").update(**figures, finish_reason="stop")
    (found,) = content(alice.get("export/"))["conversations"]
    (generation,) = found["messages"][1]["generations"]
    assert {name: generation[name] for name in figures} == figures
    assert generation["finish_reason"] == "stop"


def test_an_answer_that_ends_while_it_is_exported_is_there_whole() -> None:
    claim = factories.running()
    factories.wrote(claim, "So far")
    ended: list[int] = []

    def ends(execute: Any, sql: str, *about: Any) -> Any:
        result = execute(sql, *about)
        if not ended and 'FROM "conversations_message"' in sql:
            ended.append(claim.attempt)
            worker.finish(claim)
        return result

    with connection.execute_wrapper(ends):
        (found,) = json.loads("".join(exporting.document(Conversation.objects.all())))["conversations"]
    assert ended
    assert found["messages"][-1]["text"] == "So far"
