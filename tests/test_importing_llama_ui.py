"""What people have in llama-server's own page comes along: every branch, thought and attachment (S43)."""

import io
import json
import zipfile
from typing import Any

import pytest

from conversations import errors, history
from conversations.models import Conversation, Generation, Message
from tests.test_importing import comes, leaves, without_ids
from tests.web import Person

pytestmark = pytest.mark.django_db(transaction=True)

BEGAN = 1_760_000_000_000  # milliseconds since 1970: 9 October 2025


def node(id_: Any, parent: Any, role: str, content: str | None, *children: Any, at: int = 0, **more: Any) -> Any:
    return {
        "id": id_, "convId": "c1", "type": "text", "timestamp": BEGAN + at, "role": role, "content": content,
        "parent": parent, "children": list(children), "toolCalls": "", **more,
    }  # fmt: skip


def exported(*messages: Any, **conv: Any) -> Any:
    about = {"id": "c1", "name": "Trains", "lastModified": BEGAN + 9000, "currNode": messages[-1]["id"], **conv}
    return {"conv": about, "messages": list(messages)}


PHOTO = {"type": "IMAGE", "name": "engine.png", "base64Url": "data:image/png;base64,AAAA"}
CALL = [{"id": "call1", "type": "function", "function": {"name": "look_up", "arguments": '{"q": "Stephenson"}'}}]


def whole() -> Any:
    """A conversation of 2026 with all that there is."""
    timings = {"prompt_n": 20, "prompt_ms": 50.5, "cache_n": 5, "predicted_n": 30, "predicted_ms": 1500}
    return exported(
        node("root", None, "system", "", "s1", at=0, type="root"),
        node("s1", "root", "system", "Be short.", "q1", "q2", at=1, type="system"),
        node("q1", "s1", "user", "Who built this?", "a1", "a2", at=1000, extra=[PHOTO]),
        node("a2", "q1", "assistant", "A second answer, told first", at=2500),
        node("a1", "q1", "assistant", "", "t1", at=3000, reasoningContent="Look it up.", toolCalls=json.dumps(CALL)),
        node("t1", "a1", "tool", "George Stephenson", "a3", at=3500, toolCallId="call1"),
        node("a3", "t1", "assistant", "Stephenson.", at=4000, model="qwen", timings=timings, reasoningContent="Good."),
        node("q2", "s1", "user", "Another beginning", at=5000),
        currNode="a3", pinned=True, mcpServerOverrides=[{"serverId": "x", "enabled": True}],
    )  # fmt: skip


def lines(*conversations: Any) -> bytes:
    """As the page of 2026 writes them."""
    said = []
    for one in conversations:
        said.append({"harness": "llama.cpp", "type": "session", **one["conv"]})
        for message in one["messages"]:
            rest = {name: value for name, value in message.items() if name != "toolCalls"}
            calls = {"toolCalls": json.loads(message["toolCalls"])} if message["toolCalls"] else {}
            said.append({"message": rest | calls, "type": "message"})
    return "\n".join(map(json.dumps, said)).encode()


def zipped(*conversations: Any) -> bytes:
    with io.BytesIO() as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for number, one in enumerate(conversations):
                archive.writestr(f"2026_conv_{number}.jsonl", lines(one))
            archive.writestr("notes.txt", "ignored")
        return file.getvalue()


def test_everything_comes_along(alice: Person) -> None:
    (made,) = comes(alice.pk, [whole()]).conversations
    shown = alice.get(f"conversations/{made}/").json()
    assert (shown["title"], shown["system_prompt"], shown["pinned"]) == ("Trains", "Be short.", True)
    assert (shown["created_at"], shown["updated_at"]) == ("2025-10-09T08:53:20Z", "2025-10-09T08:53:29Z")
    path = alice.get(f"conversations/{made}/messages/").json()["results"]
    assert [(one["role"], one["text"], one["reasoning"]) for one in path] == [
        ("user", "Who built this?", ""), ("assistant", "", "Look it up."), ("user", "George Stephenson", ""),
        ("assistant", "Stephenson.", "Good."),
    ]  # fmt: skip
    assert [one["notes"] for one in path] == [
        ["Attachment “engine.png”: kept, and not read by the model here."],
        ["The model called the tool “look_up”."],
        ["The result of a tool that the model called."],
        [],
    ]
    assert path[0]["created_at"] == "2025-10-09T08:53:21Z"
    generation = path[-1]["generation"]
    assert generation["usage"] == {"prompt_tokens": 25, "completion_tokens": 30}
    assert (generation["timings"]["tokens_per_second"], generation["timings"]["prompt_ms"]) == (20.0, 50.5)
    assert Generation.objects.get().model == "qwen"
    by_text = {message.text: str(message.pk) for message in Message.objects.all()}
    assert path[1]["versions"] == [path[1]["id"], by_text["A second answer, told first"]], "in the order of that page"
    assert path[0]["versions"] == [path[0]["id"], by_text["Another beginning"]]
    assert Conversation.objects.get().imported == {
        "from": "llama.cpp", "mcpServerOverrides": [{"serverId": "x", "enabled": True}],
    }  # fmt: skip
    brought = {message["text"]: message.get("imported") for message in leaves(alice.pk)["conversations"][0]["messages"]}
    assert brought["Who built this?"] == {"extra": [PHOTO]}
    assert brought[""] == {"toolCalls": CALL}
    assert brought["George Stephenson"] == {"role": "tool", "toolCallId": "call1"}
    assert brought["Stephenson."] is None


def test_it_is_read_by_the_model_as_it_was_said_and_goes_on(alice: Person) -> None:
    (made,) = comes(alice.pk, whole()).conversations
    where = Conversation.objects.get(pk=made)
    answer = alice.say(where, "And when?").json()["generation"]["message"]
    asked = history.prompt(where.pk, answer, where.system_prompt)
    assert [one["role"] for one in asked] == ["system", "user", "assistant", "user"]
    assert asked[-1]["content"] == "And when?"
    assert asked[1]["content"] == "Who built this?\n\nGeorge Stephenson"


def test_every_form_of_the_file_is_the_same_conversation(alice: Person) -> None:
    other = exported(node("m", None, "user", "Hello"), id="c2", name="Other")
    assert len(comes(alice.pk, [whole(), other]).conversations) == 2
    for content in ([whole(), other], lines(whole(), other), zipped(whole(), other), b"\xef\xbb\xbf" + lines(whole())):
        again = comes(alice.pk, content)
        assert (again.conversations, again.already > 0) == ([], True)


def test_the_page_of_early_2025_had_numbers_for_ids(alice: Person) -> None:
    old = exported(
        node(100, -1, "system", "", 101, type="root"),
        node(101, 100, "user", "Hello", 102),
        node(102, 101, "assistant", None, at=10, thinking="Hm.", timings={"prompt_n": 3, "predicted_n": 0}),
        currNode=102,
    )
    (made,) = comes(alice.pk, old).conversations
    path = alice.get(f"conversations/{made}/messages/").json()["results"]
    assert [(one["role"], one["text"], one["reasoning"]) for one in path] == [
        ("user", "Hello", ""),
        ("assistant", "", "Hm."),
    ]


@pytest.mark.parametrize("current", ["", None, "gone", "root"])
def test_without_a_place_where_it_was_left_the_newest_path_is_shown(alice: Person, current: Any) -> None:
    found = exported(
        node("root", "", "system", "", "a", "b", type="root"),
        node("b", "root", "user", "Newest", at=20),
        node("a", "root", "user", "Older", at=10),
        currNode=current,
    )
    (made,) = comes(alice.pk, found).conversations
    (shown,) = alice.get(f"conversations/{made}/messages/").json()["results"]
    assert shown["text"] == "Newest"
    versions = [Message.objects.get(pk=pk).text for pk in shown["versions"]]
    assert versions == ["Older", "Newest"]


def test_a_system_prompt_of_another_branch_stays_a_message_and_says_so(alice: Person) -> None:
    found = exported(
        node("root", None, "system", "", "s1", "s2", type="root"),
        node("s1", "root", "system", "First prompt", "q1", type="system"),
        node("q1", "s1", "user", "Of the first", at=5),
        node("s2", "root", "system", "Second prompt", "q2", type="system", at=6),
        node("q2", "s2", "user", "Of the second", at=7),
    )
    comes(alice.pk, found)
    where = Conversation.objects.get()
    assert where.system_prompt == "Second prompt"
    assert {one.text: one.notes for one in Message.objects.all()} == {
        "First prompt": ["A system prompt of another branch."], "Of the first": None, "Of the second": None,
    }  # fmt: skip


def test_a_very_long_title_is_cut_and_kept(alice: Person) -> None:
    comes(alice.pk, exported(node("m", None, "user", "Hello"), name="x" * 500))
    where = Conversation.objects.get()
    assert (len(where.title), where.imported) == (200, {"from": "llama.cpp", "name": "x" * 500})


def test_what_came_from_there_leaves_and_comes_like_any_other(alice: Person, bob: Person) -> None:
    comes(alice.pk, whole())
    ours = leaves(alice.pk)
    comes(bob.pk, ours)
    assert without_ids(leaves(bob.pk)) == without_ids(ours)
    assert Message.objects.filter(conversation__owner=bob.pk, notes__isnull=False).count() == 3


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            [whole(), exported(node("a", None, "robot", "x"))],
            "conversation 2, message 1: `role` is 'robot', it must be",
        ),
        (exported(node("a", None, "user", 5)), "message 1: `content` is a number, it must be a string."),  # type: ignore[arg-type]
        (exported(node("a", None, "user", "x", timestamp="now")), "`timestamp` is 'now', it must be a time in milli"),
        (exported(node("a", None, "user", "x", timestamp=10**15)), "`timestamp` is a number, it must be a time in"),
        (exported(node(None, None, "user", "x")), "conversation 1, message 1: `id` is missing."),
        (exported(node("a", ["b"], "user", "x")), "`parent` is a list, it must be a string or a number."),
        (exported(node("a", "b", "user", "x"), node("b", "a", "user", "x")), "follow each other in a circle"),
        (exported(node("a", None, "user", "x"), encryption={"v": 1}), "it is encrypted"),
        ({"conv": {"name": "x"}, "messages": []}, "`conv`: `lastModified` is missing."),
        (
            b'{"type": "session", "lastModified": 5}\n{"type": "message", "message": {"id"',
            "line 2: This is not valid JSON",
        ),
        (b'{"type": "session"}\n{"type": "message"}', "conversation 1, `conv`: `lastModified` is missing."),
        (
            b'{"type": "session", "lastModified": 5}\n{"type": "message"}',
            "message 1: this is null, it must be an object",
        ),
        (b'{"type": "session", "lastModified": 5}\n{}', "line 2: here a conversation should begin"),
    ],
)
def test_a_fault_is_named_with_its_place(alice: Person, wrong: Any, sentence: str) -> None:
    with pytest.raises(errors.ImportRefused) as refusal:
        comes(alice.pk, wrong)
    assert sentence in refusal.value.detail
    assert not Conversation.objects.exists()


def test_a_zip_file_that_would_fill_the_memory_is_refused(alice: Person) -> None:
    with io.BytesIO() as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("bomb.jsonl", b" " * (33 * 1024 * 1024))
        bomb = file.getvalue()
    assert len(bomb) < 100_000
    with pytest.raises(errors.ImportRefused, match="one by one"):
        comes(alice.pk, bomb)
