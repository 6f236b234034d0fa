"""The scripted server says what it is told and fails as it is told."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.eventually import eventually
from tests.fake_llama import FakeLlama, Script, default_answer
from tests.llama import FakeLlamaProcess, fake_llama_process
from tests.llama_client import Answer, Server, assistant, in_background, new_id, user

PAIR = {"continue_final_message": True, "add_generation_prompt": False}


@pytest.fixture
def fake() -> Iterator[FakeLlama]:
    with FakeLlama(slots=2, n_ctx=512) as server:
        yield server


@pytest.fixture
def client(fake: FakeLlama) -> Server:
    return Server(fake.url)


@pytest.fixture
def process() -> Iterator[FakeLlamaProcess]:
    with fake_llama_process(slots=1, rate=100) as server:
        yield server


# What it says


def test_an_answer_depends_on_the_question_alone_and_goes_on_where_a_partial_stopped(client: Server) -> None:
    whole = client.chat("Tell me", id_slot=0, max_tokens=100).text
    assert whole == default_answer("Tell me")
    assert whole != client.chat("Tell him", id_slot=0, max_tokens=100).text
    part = client.chat("Tell me", id_slot=0, max_tokens=7).text
    rest = client.chat([user("Tell me"), assistant(part)], id_slot=1, max_tokens=100, **PAIR).text
    assert part + rest == whole


def test_asked_for_the_first_message_it_answers_with_it(client: Server) -> None:
    said = [user("I am Ada"), assistant("Hello"), user("What was my first message?")]
    assert "I am Ada" in client.chat(said, id_slot=0, max_tokens=50).text


def test_a_directive_in_the_message_scripts_its_answer(client: Server) -> None:
    answer = client.chat('Go [[tokens=3 reasoning="let me see"]]', id_slot=0, max_tokens=50)
    thought = "".join(delta.get("reasoning_content", "") for delta in answer.deltas)
    assert (thought, len(answer.text.split())) == ("let me see", 3)
    refused = client.open("Go [[tokens=3 flavour=sweet]]")
    assert "flavour" in refused.json()["error"]["message"]


def test_reasoning_is_continued_where_it_stopped(fake: FakeLlama, client: Server) -> None:
    fake.script(Script(text="Yes", reasoning="one two three four"))
    partial = {"role": "assistant", "content": "", "reasoning_content": "one two"}
    pair = PAIR | {"continue_final_message": "reasoning_content"}
    answer = client.chat([user("Why"), partial], id_slot=0, max_tokens=50, **pair)
    thought = "".join(delta.get("reasoning_content", "") for delta in answer.deltas)
    assert (thought, answer.text) == (" three four", "Yes")


def test_any_character_can_be_said(fake: FakeLlama, client: Server) -> None:
    text = "nul\0 line\u2028 next\x85 smile\U0001f600 end\n"
    fake.script(Script(text=text))
    assert client.chat("Go", id_slot=0, max_tokens=100).text == text


def test_the_newest_script_that_applies_is_used_as_often_as_it_says(fake: FakeLlama, client: Server) -> None:
    fake.script(Script(text="old"))
    fake.script(Script(text="new", match="please", times=1))
    fake.script(lambda body: Script(text="by function") if body.get("temperature") == 2 else None)
    said = [client.chat(asked, id_slot=0).text for asked in ("Go", "Go please", "Go please")]
    assert said == ["old", "new", "old"]
    assert client.chat("Go", id_slot=0, temperature=2, max_tokens=50).text == "by function"


# How it fails


@pytest.mark.parametrize(
    ("fault", "status", "kind"),
    [
        ("500", 500, "application/json"),
        ("503", 503, "application/json"),
        ("400", 400, "application/json"),
        ("html", 502, "text/html"),
        ("json", 200, "application/json"),
    ],
)
def test_a_refusal_touches_no_slot(client: Server, fault: str, status: int, kind: str) -> None:
    with client.open(f"[[fault={fault}]]", id_slot=0) as response:
        assert response.status_code == status
        assert response.headers["Content-Type"].startswith(kind)
    assert "id_task" not in client.slot(0)


def test_headers_can_be_withheld_for_ever(client: Server) -> None:
    with pytest.raises(requests.ReadTimeout):
        client.open("[[fault=no_headers]]", id_slot=0, timeout=0.2)
    assert not client.slot(0)["is_processing"]


def test_a_right_answer_can_carry_the_wrong_type(client: Server) -> None:
    with client.open("[[fault=wrong_type]]", id_slot=0) as response:
        assert response.headers["Content-Type"] == "text/plain"
        assert Answer.read(response.iter_lines()).done


def test_one_event_can_be_no_json(client: Server) -> None:
    with client.open("[[fault=bad_json after=2]]", id_slot=0) as response:
        lines = [line for line in response.iter_lines() if line]
    with pytest.raises(json.JSONDecodeError):
        Answer.read(iter(lines))
    assert lines[-1] == b"data: [DONE]"


@pytest.mark.parametrize(("fault", "error"), [("error", 1), ("end", 0)])
def test_a_stream_can_end_early_with_an_error_event_or_without(client: Server, fault: str, error: int) -> None:
    answer = client.chat(f"[[fault={fault} after=3]]", id_slot=0, max_tokens=50)
    assert not answer.done
    assert len(answer.text.split()) == 3
    assert len([event for event in answer.events if "error" in event]) == error
    assert not client.slot(0)["is_processing"]


def test_a_dropped_connection_breaks_off_and_the_stream_can_be_read_on(client: Server) -> None:
    stream_id = new_id()
    with (
        client.open("[[fault=drop after=3]]", id_slot=0, stream_id=stream_id, max_tokens=50) as response,
        pytest.raises(requests.exceptions.ChunkedEncodingError),
    ):
        response.content  # noqa: B018
    with client.stream(stream_id) as again:
        assert Answer.read(again.iter_lines()).done


def test_a_hang_is_ended_by_a_stop_and_a_wedge_by_nothing(client: Server) -> None:
    for slot, (fault, busy) in enumerate([("hang", False), ("wedge", True)]):
        stream_id = new_id()
        with client.open(f"[[fault={fault} after=2]]", id_slot=slot, stream_id=stream_id) as response:
            lines = response.iter_lines(chunk_size=1)
            assert len([next(line for line in lines if b'"content":"' in line) for _ in range(2)]) == 2
            client.delete_stream(stream_id)
            if not busy:
                eventually(client.quiet(slot))
    assert client.slot(1)["is_processing"]


def test_slots_can_lie(fake: FakeLlama, client: Server) -> None:
    fake.set(slots_fault="missing")
    assert [slot["id"] for slot in client.get("/slots").json()] == [0]
    fake.set(slots_fault="busy")
    assert all(slot["is_processing"] for slot in client.get("/slots").json())
    fake.set(slots_fault="off")
    assert client.get("/slots").status_code == 501
    fake.set(slots_fault="silent")
    with pytest.raises(requests.ReadTimeout):
        requests.get(f"{fake.url}/slots", timeout=0.2)


def test_an_older_server_knows_no_resumable_streams(fake: FakeLlama, client: Server) -> None:
    fake.set(streams_route=False)
    stream_id = new_id()
    client.open("[[tokens=400]]", id_slot=0, stream_id=stream_id, max_tokens=400).close()
    eventually(lambda: fake.requests[0].outcome == "cancelled")
    eventually(client.quiet(0))
    for answer in (client.stream(stream_id), client.delete_stream(stream_id)):
        assert answer.status_code == 404


def test_bytes_that_left_the_ring_are_lost() -> None:
    with FakeLlama(ring_bytes=1000) as fake:
        client, stream_id = Server(fake.url), new_id()
        client.chat("Go", id_slot=0, stream_id=stream_id, max_tokens=50)
        assert client.stream(stream_id).status_code == 400
        assert client.stream(stream_id, client.lookup(stream_id)[0]["total_bytes"] - 1000).ok


def test_a_first_client_that_does_not_read_holds_up_every_other_reader_and_the_stop() -> None:
    with FakeLlama(n_ctx=16_000) as fake:
        fake.script(Script(pieces=("x" * 5000,) * 8000, rate=1500))  # more than the sockets between the two hold
        client, stream_id = Server(fake.url), new_id()
        deaf = client.open("Go", id_slot=0, stream_id=stream_id, max_tokens=8000)
        seen: list[int] = []
        eventually(lambda: _stands_still(client, stream_id, seen), every=0.1)
        client.delete_stream(stream_id)
        decoded = _decoded(client)
        eventually(lambda: _decoded(client) > decoded + 100)
        deaf.close()
        eventually(client.quiet(0), 2)


def _stands_still(client: Server, stream_id: str, seen: list[int]) -> bool:
    seen.append(client.lookup(stream_id)[0]["total_bytes"])
    return len(seen) > 1 and seen[-1] == seen[-2] > 0


def _decoded(client: Server) -> int:
    return int(client.slot(0)["next_token"][0]["n_decoded"])


# What it remembers


def test_it_remembers_who_asked_what_of_which_slot_and_how_many_at_once(fake: FakeLlama, client: Server) -> None:
    fake.script(Script(match="long", tokens=300, rate=1000))
    answers = [in_background(lambda: client.chat("long", id_slot=0, max_tokens=400)) for _ in range(2)]
    client.chat("short", id_slot=1)
    assert all(answer().done for answer in answers)
    assert sorted((record.asked, record.slot, record.outcome) for record in fake.requests) == [
        ("long", 0, "stop"), ("long", 0, "stop"), ("short", 1, "length"),
    ]  # fmt: skip
    assert fake.most_at_once == {0: 2, 1: 1}
    assert fake.most_deferred == 1
    assert "POST /v1/chat/completions" in fake.journal.calls


def test_a_restart_keeps_the_port_and_forgets_the_rest(fake: FakeLlama, client: Server) -> None:
    client.chat("Go", id_slot=0, stream_id="one")
    before = client.get("/props").json()["media_marker"]
    with client.open("[[tokens=500 rate=50]]", id_slot=0, max_tokens=500) as response:
        fake.restart()
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            response.content  # noqa: B018
    assert client.get("/props").json()["media_marker"] != before
    assert "id_task" not in client.slot(0)
    assert client.lookup("one") == []
    assert [record.outcome for record in fake.requests] == ["length", "ended"]


def test_as_a_process_it_is_scripted_killed_and_started_again_on_its_port(process: FakeLlamaProcess) -> None:
    client = Server(process.url)
    process.script(text="from outside", times=1)
    assert client.chat("Go", id_slot=0, max_tokens=50).text == "from outside"
    assert process.journal()["most_at_once"] == {"0": 1}
    process.pause()
    with pytest.raises(requests.ReadTimeout):
        requests.get(f"{process.url}/health", timeout=0.2)
    process.resume()
    assert client.get("/health").ok
    process.restart()
    assert "id_task" not in client.slot(0)


def test_parked_files_outlive_the_process(tmp_path: Path) -> None:
    for attempt in range(2):
        with FakeLlama(slot_save_path=tmp_path) as fake:
            client = Server(fake.url)
            if attempt == 0:
                client.chat("Remember", id_slot=0)
                held = client.action(0, "save", "park-1").json()["n_saved"]
            else:
                assert client.action(1, "restore", "park-1").json()["n_restored"] == held
                assert client.chat("Remember", id_slot=1).cache_n > 0


def test_a_process_ends_when_asked(process: FakeLlamaProcess) -> None:
    process.process.send_signal(signal.SIGTERM)
    assert process.process.wait(5) == -signal.SIGTERM
