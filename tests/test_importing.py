"""Our own files come back as they left, as a whole or not at all, and change nothing for anybody else."""

import io
import json
import select
import socket
import tempfile
import tracemalloc
import uuid
import zipfile
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from twisted.internet import testing as twisted_testing
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

import chatbackend
from chatbackend import web_protocols
from chatbackend.accounts.models import User
from chatbackend.web_protocols import LONGER, LONGEST_BODY
from conversations import errors, estimate, replays
from conversations.models import Conversation, Generation, Message, Person
from conversations.transfer import exporting, files, importing
from conversations.transfer.importing import Imported
from tests import factories, worker
from tests.test_api_conversations import refused
from tests.test_api_messages import answered
from tests.test_web_server import Peak
from tests.web import Person as Visitor

pytestmark = pytest.mark.django_db(transaction=True)

AT = "2026-11-30T12:00:00.000001Z"


def someone() -> int:
    return User.objects.create(username=uuid.uuid4().hex).pk


def comes(person: int, content: bytes | Any) -> Imported:
    """Import a file, or an object as JSON."""
    with tempfile.TemporaryFile() as file:
        file.write(content if isinstance(content, bytes) else json.dumps(content).encode())
        file.flush()
        file.seek(0)
        return importing.imported(person, file)


def leaves(person: int) -> Any:
    """The export of all that `person` has."""
    return json.loads("".join(exporting.document(Conversation.objects.filter(owner=person, deleted_at=None))))


def without_ids(document: Any) -> Any:
    """Conversations with the number of a message in place of its id."""
    for conversation in document["conversations"]:
        number = {message["id"]: at for at, message in enumerate(conversation["messages"])}
        conversation |= {"id": 0, "leaf": number.get(conversation["leaf"])}
        for message in conversation["messages"]:
            message |= {"id": number[message["id"]], "parent": number.get(message["parent"])}
    return document["conversations"]


def message(key: str, parent: str | None = None, role: str = "user", text: str = "Hello", **more: Any) -> Any:
    return {"id": key, "parent": parent, "role": role, "text": text, "reasoning": "", "created_at": AT, **more}


def conversation(*messages: Any, **more: Any) -> Any:
    about: dict[str, Any] = {
        "id": str(uuid.uuid4()), "title": "", "model": "", "system_prompt": "", "params": {}, "pinned": False,
        "archived": False, "created_at": AT, "updated_at": AT, "leaf": messages[-1]["id"] if messages else None,
    }  # fmt: skip
    return {**about, "messages": list(messages), **more}


def document(*conversations: Any, **more: Any) -> Any:
    return {"format": "chatbackend", "version": 1, "exported_at": AT, "conversations": list(conversations), **more}


def run(**more: Any) -> Any:
    about: dict[str, Any] = {
        "kind": "send", "model": "m", "params": {"seed": 1}, "status": "done", "finish_reason": "stop", "error": None,
        "usage": {"prompt_tokens": 9, "completion_tokens": 7}, "timings": {"ttft_ms": 12, "replay_cause": "expired"},
        "queued_at": AT, "started_at": AT, "finished_at": AT,
    }  # fmt: skip
    return {**about, **more}


TEXT = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=20)
TIMES = st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1)).map(
    lambda at: f"{at.replace(tzinfo=None).isoformat()}Z"
)
RUNS = st.builds(
    run, kind=st.sampled_from(Generation.Kind.values), model=TEXT, finish_reason=TEXT, queued_at=TIMES,
    status=st.sampled_from(["done", "cancelled", "failed", "interrupted"]), finished_at=TIMES,
    started_at=st.none() | TIMES, usage=st.none() | st.just({"prompt_tokens": None, "completion_tokens": 5}),
    error=st.none() | st.just({"code": "x", "detail": "It broke.", "retryable": True}),
)  # fmt: skip


@st.composite
def conversations(draw: st.DrawFn) -> Any:
    messages: list[Any] = []
    for at in range(draw(st.integers(0, 8))):
        parent = draw(st.sampled_from([None, *[one["id"] for one in messages]]))
        made = message(
            str(at), parent, draw(st.sampled_from(["user", "assistant"])), draw(TEXT), reasoning=draw(TEXT),
            created_at=draw(TIMES),
        )  # fmt: skip
        if runs := draw(st.lists(RUNS, max_size=2)):
            made["generations"] = runs
        if draw(st.booleans()):
            made["imported"] = draw(st.dictionaries(TEXT, TEXT, min_size=1, max_size=2))
        messages.append(made)
    return conversation(
        *messages, title=draw(TEXT), system_prompt=draw(TEXT), model=draw(TEXT), pinned=draw(st.booleans()),
        archived=draw(st.booleans()), created_at=draw(TIMES), updated_at=draw(TIMES),
        leaf=draw(st.sampled_from([None, *[one["id"] for one in messages]])),
        params=draw(st.sampled_from([{}, {"temperature": 0.5, "stop": ["x"]}])),
    )  # fmt: skip


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(conversations(), max_size=3))
def test_what_is_imported_and_exported_again_is_the_same_but_for_ids(found: list[Any]) -> None:
    first, second = someone(), someone()
    assert len(comes(first, document(*found)).conversations) == len(found)
    exported = leaves(first)
    comes(second, exported)
    expected = without_ids(document(*found))
    assert without_ids(exported) == expected
    again = leaves(second)
    assert without_ids(again) == expected
    new = {str(pk) for pk in Conversation.objects.filter(owner=second).values_list("pk", flat=True)}
    assert not new & {one["id"] for one in exported["conversations"]}


def test_what_postgres_cannot_store_is_cleaned_as_everywhere(alice: Visitor) -> None:
    odd = "a\x00b \ud800 \U0001f600"
    found = conversation(message("m", text=odd, imported={odd: [odd]}), title=odd)
    comes(alice.pk, json.dumps(document(found)).encode())
    stored = Message.objects.get()
    assert (stored.text, stored.imported) == ("ab � \U0001f600", {"ab � \U0001f600": ["ab � \U0001f600"]})


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (b"", "The file is empty."),
        (b"hello", "no form that is known here"),
        (b'{"a": 1}', "no form that is known here"),
        (b'[{"conv": {}', "This file is cut off, or no JSON."),
        (b"[1]", "conversation 1: this is a number, it must be an object."),
        (b"[] []", "something after the end"),
        (b'{"format": "chatbackend", "version": 2, "conversations": []}', "has version 2 of our format"),
        (b"PK\x03\x04 and nothing", "This ZIP file is damaged"),
        (b'\xff\xfe{"a":', "no form"),
        (document(conversation(), {}), "conversation 2: `id` is missing."),
        (document(conversation(title=5)), "conversation 1: `title` is a number, it must be a string."),
        (document(conversation(model="x" * 1001)), "conversation 1: `model` has 1,001 characters, 1,000 are allowed."),
        (document(conversation(title="x" * 201)), "conversation 1: `title` has 201 characters, 200 are allowed."),
        (document(conversation(titel="x")), "conversation 1: there is no field `titel`."),
        (document(conversation(pinned="no")), "conversation 1: `pinned` is 'no', it must be true or false."),
        (document(conversation(created_at="yesterday")), "`created_at` is 'yesterday', it must be a time like"),
        (document(conversation(params={"n": 4})), "conversation 1: “n” is no parameter; there are"),
        (document(conversation(leaf="x")), "`leaf` is 'x', it must be the id of a message"),
        (document(conversation(message("a"), message("a"))), "conversation 1: two messages have the id 'a'."),
        (document(conversation(message("a"), message("b", "c"))), "message 2: `parent` is 'c', which is no message"),
        (
            document(conversation(message("a", "b"), message("b", "a"))),
            "conversation 1: some messages follow each other",
        ),
        (
            document(conversation(message("a", role="tool"))),
            "message 1: `role` is 'tool', it must be one of user, assis",
        ),
        (document(conversation(message("a", text="x" * 1_000_001))), "`text` has 1,000,001 characters, 1,000,000 are"),
        (document(conversation(message("a", generations=[run(), run(status="x")]))), "generation 2: `status` is 'x'"),
        (document(conversation(message("a", generations=[run(timings={"ttft_ms": "x"})]))), "`timings.ttft_ms` is 'x'"),
        (document(conversation(message("a", generations=[run(usage={"prompt_tokens": 10**10})]))), "a whole number of"),
        (document(conversation(message("a", generations=[run(usage={"prompt_tokens": 1.5})]))), "a whole number of"),
        (document(conversation(message("a", imported={"x": 10**400}))), "`imported`: a number is too large."),
        (document(conversation(), presets=[{"name": ""}]), "preset 1: `name` is '', it must be a name of 1 to 100"),
        (document(conversation(), presets={}), "`presets`: this is an object, it must be a list."),
        (b'[{"conv": ' + b"[" * 60 + b"]" * 60 + b', "messages": []}]', "nested more than 50 deep"),
        (b'[{"conv": ' + b"[" * 9999 + b"]" * 9999 + b', "messages": []}]', "nested too deep"),
    ],
)
def test_a_file_with_a_fault_is_refused_with_its_place_and_nothing_of_it_stays(wrong: Any, sentence: str) -> None:
    person = someone()
    with pytest.raises(errors.ImportRefused) as refusal:
        comes(person, wrong)
    assert sentence in refusal.value.detail
    assert refusal.value.detail.endswith(". Nothing was imported.") or "known here" in refusal.value.detail
    assert not Conversation.objects.filter(owner=person).exists()


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [("MOST_VALUES", "conversation 1: it has more than 100 values"), ("MOST_MARKS", "too many values")],
)
def test_a_file_of_nothing_but_brackets_is_refused(limit: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, limit, 100)
    with pytest.raises(errors.ImportRefused, match=sentence):
        comes(someone(), b'[{"conv": {}, "messages": [' + b"{}," * 101 + b"{}]}]")


def test_a_file_of_more_conversations_than_can_be_waited_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST", 2)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as into:
        for name in ("a", "b", "c"):
            into.writestr(f"{name}.jsonl", '{"type": "session", "lastModified": 1}')
    for content in (document(*[conversation()] * 3), archive.getvalue()):
        with pytest.raises(errors.ImportRefused, match="more than 2 conversations"):
            comes(person := someone(), content)
        assert not Conversation.objects.filter(owner=person).exists()


def test_a_file_of_nothing_but_names_costs_no_more_than_itself() -> None:
    content = b'{"format": "chatbackend"' + b"".join(b', "%d": 1' % number for number in range(10_000)) + b"}"
    person = someone()
    tracemalloc.start()
    with pytest.raises(errors.ImportRefused, match="no form that is known"):
        comes(person, content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * len(content)


def test_the_same_file_twice_is_imported_once_and_only_what_is_new_of_a_later_one(alice: Visitor) -> None:
    first, second = conversation(message("a"), title="First"), conversation(message("a"), title="Second")
    assert len(comes(alice.pk, document(first, first)).conversations) == 2, "twice in one file is twice"
    again = comes(alice.pk, document(first, second))
    assert (len(again.conversations), again.already) == (1, 1)
    other = {**first, "id": str(uuid.uuid4()), "messages": [message("b")], "leaf": "b"}
    assert comes(alice.pk, document(other)).already == 1, "other ids do not make it another"
    alice.delete(f"conversations/{again.conversations[0]}/")
    assert len(comes(alice.pk, document(second)).conversations) == 1, "what was deleted comes back"


def test_what_is_still_here_is_not_imported_beside_itself(alice: Visitor, bob: Visitor) -> None:
    factories.server()
    where = factories.conversation(factories.person("alice"))
    answered(where, "One", "First")
    exported = leaves(alice.pk)
    answered(where, "Two", "Second")
    assert comes(alice.pk, exported) == Imported([], 1, 0, 0)
    assert len(comes(bob.pk, exported).conversations) == 1, "to anybody else it is new"
    alice.delete(f"conversations/{where.pk}/")
    assert len(comes(alice.pk, exported).conversations) == 1


def test_presets_come_along_but_for_those_whose_name_is_taken(alice: Visitor, bob: Visitor) -> None:
    for name in ("Short", "Long"):
        alice.post("presets/", {"name": name, "system_prompt": f"Be {name}.", "params": {"seed": 5}})
    bob.post("presets/", {"name": "Short", "system_prompt": "Mine."})
    exported = alice.get("export/").content
    said = bob.request("POST", "/api/v1/import/", data=exported).json()
    left = "1 preset was left out: such names are taken, or there are as many as one may have."
    assert (said["detail"], said["presets"]) == (f"1 preset was imported. {left}", 1)
    own = [(one["name"], one["system_prompt"], one["params"]) for one in bob.get("presets/").json()]
    assert sorted(own) == [("Long", "Be Long.", {"seed": 5}), ("Short", "Mine.", {})]


def test_imported_figures_count_for_nothing_here() -> None:
    factories.server()
    person = factories.person("alice").pk
    timings = {"queue_ms": 1, "ttft_ms": 10**9, "prompt_n": 9, "prompt_ms": 5, "replay_cause": "expired"}
    found = conversation(message("a"), message("b", "a", "assistant", generations=[run(timings=timings)]))
    (made,) = comes(person, document(found)).conversations
    assert Generation.objects.get().timings == timings
    assert estimate.recent() == []
    assert replays.since(datetime(2020, 1, 1, tzinfo=UTC)) == []
    assert not Person.objects.exists()
    factories.sent(Conversation.objects.get(pk=made))
    assert worker.claimed().replay_cause is None


def test_what_was_under_way_elsewhere_has_been_interrupted(alice: Visitor) -> None:
    live = run(status="running", finished_at=None, usage=None, timings=None)
    (made,) = comes(
        alice.pk, document(conversation(message("a"), message("b", "a", "assistant", "So far", generations=[live])))
    ).conversations
    shown = alice.get(f"conversations/{made}/messages/").json()["results"][-1]
    assert (shown["text"], shown["generation"]["status"]) == ("So far", "interrupted")


class TestOverRest:
    def send(self, person: Visitor, content: Any, **headers: str) -> Any:
        return person.request("POST", "/api/v1/import/", data=content, headers=headers)

    def test_a_file_is_taken_and_every_device_shows_what_came(self, alice: Visitor, bob: Visitor) -> None:
        file = json.dumps(document(conversation(message("a"), title="From afar"))).encode()
        with alice.tab() as tab, bob.tab() as other:
            said = self.send(alice, file).json()
            assert said["detail"] == "1 conversation was imported."
            assert tab.expect("conversation.updated")["conversation"]["title"] == "From afar"
            assert other.quiet()
        assert alice.get(f"conversations/{said['conversations'][0]}/").json()["updated_at"] == AT
        again = self.send(alice, file).json()
        assert again["detail"] == "Nothing new was imported. 1 conversation was here already."
        assert (again["imported"], again["already"]) == (0, 1)

    def test_a_form_is_refused_with_what_would_be_right(self, alice: Visitor) -> None:
        answer = alice.request("POST", "/api/v1/import/", files={"file": io.BytesIO(b"{}")})
        assert "the file itself" in refused(answer, 400, "not_a_file")["detail"]

    def test_a_large_file_costs_a_few_times_its_size_and_a_larger_one_is_refused(self, alice: Visitor) -> None:
        page = Path(chatbackend.__file__).with_name("static") / "importing.js"
        assert LONGER[b"/api/v1/import/"] == files.LARGEST == 32 * 1024 * 1024
        assert "LONGEST = 32 * 1024 * 1024;" in page.read_text()
        image = {"type": "imageFile", "name": "photo.png", "base64Url": "x" * (7 * LONGEST_BODY)}
        found = [conversation(message("a", imported={"extra": [image], "number": at})) for at in range(4)]
        file = json.dumps(document(*found)).encode()
        self.send(alice, json.dumps(document(conversation())).encode())
        peak = Peak(alice.web)
        assert self.send(alice, file).json()["imported"] == 4
        assert peak.growth < 6 * len(file)
        where = Conversation.objects.filter(owner=alice.pk).latest("pk")
        shown = alice.get(f"conversations/{where.pk}/messages/")
        assert shown.json()["results"][0]["notes"] == ["Attachment “photo.png”: kept, and not read by the model here."]
        assert len(shown.content) < 2000
        refused(self.send(alice, b" " * (files.LARGEST + 1)), 413, "too_large")
        assert (
            "1,048,576"
            in refused(alice.request("POST", "/api/v1/conversations/", data=file), 413, "too_large")["detail"]
        )

    def test_two_files_at_once_are_one_too_many_for_a_process(self, alice: Visitor) -> None:
        with importing._alone(), pytest.raises(errors.ImportUnderWay):
            comes(alice.pk, document())

    def test_nobody_holds_a_place_without_a_session_or_for_ever(
        self, alice: Visitor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        host, _, port = alice.web.address.removeprefix("http://").partition(":")
        head = f"POST /api/v1/import/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: {2 * LONGEST_BODY}\r\n"
        with ExitStack() as stack:
            slow = [stack.enter_context(socket.create_connection((host, int(port)), 10)) for _ in range(3)]
            for connection in slow:
                connection.sendall(f"{head}X-Session-Token: {'0' * 32}\r\n\r\n12345".encode())
                answer = connection.recv(4096)
                assert answer.startswith(b"HTTP/1.1 401")
                assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "not_signed_in"
            own = [stack.enter_context(socket.create_connection((host, int(port)), 10)) for _ in range(3)]
            for connection in own:
                connection.sendall(f"{head}X-Session-Token: {alice.token}\r\n\r\n".encode())
            waits = [connection for connection in own if select.select([connection], [], [], 1)[0]]
            assert waits == [], "what is refused is read first"
            answer = self.send(alice, b" " * (2 * LONGEST_BODY))
            assert (answer.status_code, answer.json()["code"], answer.headers["Retry-After"]) == (429, "busy", "5")


def test_a_file_that_comes_too_slowly_is_given_up_and_its_place_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of the test's own."""
    clock, testing = Clock(), cast(Any, twisted_testing)
    monkeypatch.setattr(web_protocols, "reactor", clock)
    monkeypatch.setattr("twisted.internet.threads.deferToThread", lambda *about: Deferred())
    channel = web_protocols.HttpFactory(Mock()).buildProtocol(None)
    channel.makeConnection(transport := testing.StringTransport())
    channel.dataReceived(b"POST /api/v1/import/ HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000\r\n\r\nSlow")
    clock.advance(web_protocols.LONGER_SECONDS - 1)
    assert (transport.value(), len(web_protocols._longer)) == (b"", 1)
    clock.advance(2)
    assert transport.value().startswith(b"HTTP/1.1 408")
    assert (transport.disconnecting, web_protocols._longer) == (True, set())
