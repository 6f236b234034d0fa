"""llama-servers that lie, hang or answer nonsense: the turn ends in a sentence, and nothing of it is lost."""

import re
from dataclasses import replace

import pytest

from conversations import asking
from conversations.history import GenerationView
from conversations.models import Generation
from conversations.worker import running
from conversations.worker.writer import Writer
from slots import servers
from slots.models import Server, Slot
from slots.renewal import Renewal
from slots.watch import Watch
from tests import factories
from tests.answers import ended, look
from tests.eventually import eventually
from tests.fake_llama import FakeLlama, Fault, Script, default_answer
from tests.scripted.sse import ChatStream
from tests.scripted.tasks import Event, Token
from tests.stack import StartProcess

pytestmark = pytest.mark.django_db(transaction=True)

STORY = default_answer("Tell me a story.")


def script(server: FakeLlama, fault: Fault, times: int | None, after: int = 6) -> None:
    server.script(Script(rate=200, fault=fault, after=after, times=times))


def said_to_a_person(view: GenerationView) -> str:
    """The sentence of its error, which says what happened, what was kept and what to do, and has no jargon in it."""
    assert view.error
    said = str(view.error["detail"])
    kept = "What was written is kept." if view.text or view.reasoning else "Your message is kept."
    happened, to_do = said.split(f" {kept} ")
    assert happened.endswith(".")
    assert re.match(r"(Try again|Shorten the message|The same message)\b", to_do)
    assert not re.search(r"https?:|[0-9a-f]{8}-|\bstatus\b|\w+(Error|Exception)\b|Traceback|0x|[{}<>\[\]]|b'", said)
    return said


@pytest.mark.parametrize("fault", ["500", "503", "html", "json", "wrong_type", "bad_json", "drop", "error", "end"])
def test_a_fault_that_passes_is_not_seen_by_anybody(
    fault: Fault, fake_llama: FakeLlama, start_worker: StartProcess
) -> None:
    script(fake_llama, fault, times=1)
    start_worker(LLAMA_SERVERS=fake_llama.url)
    view = ended(factories.sent(words="Tell me a story."), 30)
    assert (view.status, view.text, view.error) == ("done", STORY, None)


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        ("500", "failed", "server_failed"),
        ("400", "failed", "server_refused"),
        ("html", "failed", "server_failed"),
        ("json", "failed", "server_failed"),
        ("bad_json", "failed", "server_failed"),
        ("error", "failed", "server_failed"),
        ("drop", "interrupted", "stream_broken"),
        ("end", "interrupted", "stream_broken"),
    ],
)
def test_a_fault_that_stays_ends_the_turn_with_code_and_sentence_and_keeps_its_text(
    fault: Fault, status: str, code: str, fake_llama: FakeLlama, start_worker: StartProcess
) -> None:
    script(fake_llama, fault, times=None)
    worker = start_worker(LLAMA_SERVERS=fake_llama.url)
    turn = factories.sent(words="Tell me a story.")
    view = ended(turn, 30)
    assert view.error
    assert (view.status, view.error["code"]) == (status, code)
    assert said_to_a_person(view) == view.error["detail"]
    assert STORY.startswith(view.text)
    assert bool(view.text) == (fault in ("bad_json", "error", "drop", "end"))
    assert Generation.objects.get(pk=turn.generation.pk).attempt == (1 if fault == "400" else 3)
    assert turn.message.text == "Tell me a story."
    assert worker.process.poll() is None


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b'{"choices":[],"prompt_progress":{"total":1e999,"cache":0,"processed":0}}', "failed"),
        (b'{"choices":[],"prompt_progress":{"total":1000000000000000000000000,"cache":0,"processed":0}}', "failed"),
        (b"[" * 100_000, "failed"),
        (b'{"error":{"code":500,"message":"nul \\u0000, half \\ud800"}}', "failed"),
        (b'{"choices":[],"usage":"none","timings":{"prompt_n":NaN,"cache_n":9e999}}', "done"),
        (b'{"choices":[{"delta":{},"finish_reason":"st\\u0000op"}]}', "done"),
    ],
)
def test_what_can_be_neither_stored_nor_sent_ends_no_worker(
    said: bytes, status: str, fake_llama: FakeLlama, start_worker: StartProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ChatStream.encode

    def with_a_lie(stream: ChatStream, happened: Event) -> bytes:
        lie = b"data: " + said + b"\n\n" if isinstance(happened, Token) else b""
        return lie + whole(stream, happened)

    monkeypatch.setattr(ChatStream, "encode", with_a_lie)
    worker = start_worker(LLAMA_SERVERS=fake_llama.url)
    view = ended(factories.sent(words="Tell me a story."))
    assert view.status == status
    assert worker.process.poll() is None
    assert "Traceback" not in worker.output()


@pytest.mark.parametrize("fault", ["hang", "no_headers"])
def test_a_server_that_falls_silent_is_given_up_and_the_turn_goes_on(
    fault: Fault, fake_llama: FakeLlama, start_worker: StartProcess
) -> None:
    script(fake_llama, fault, times=1)
    start_worker(LLAMA_SERVERS=fake_llama.url, LLAMA_SILENCE="2")
    view = ended(factories.sent(words="Tell me a story."), 30)
    assert (view.status, view.text) == ("done", STORY)


def test_a_message_that_does_not_fit_ends_with_both_numbers(start_worker: StartProcess) -> None:
    with FakeLlama(n_ctx=256) as server:
        start_worker(LLAMA_SERVERS=server.url)
        view = ended(factories.sent(words="word " * 400))
        assert view.status == "failed"
        assert view.error
        assert (view.error["code"], view.error["retryable"], view.error["n_ctx"]) == ("context_exceeded", False, 256)
        assert view.error["prompt_tokens"] > 400
        assert f"have {view.error['prompt_tokens']:,} tokens; the model can read 256." in said_to_a_person(view)
        eventually(lambda: not Slot.objects.filter(phase="busy").exists())
        assert ended(factories.sent(factories.conversation(), "hello")).status == "done"


@pytest.mark.parametrize(
    ("behaviour", "sentence"),
    [
        ({"slots_fault": "missing"}, "/slots lists"),
        ({"slots_fault": "off"}, "501"),
        ({"slots_fault": "silent"}, "said nothing"),
        ({"loading": True}, "still loading"),
    ],
)
def test_a_server_that_cannot_be_trusted_gets_nothing_and_the_reason_is_said(
    behaviour: dict[str, object], sentence: str, fake_llama: FakeLlama, start_worker: StartProcess
) -> None:
    fake_llama.set(**behaviour)
    start_worker(LLAMA_SERVERS=fake_llama.url)
    turn = factories.sent(words="Tell me a story.")
    eventually(lambda: sentence in (servers.why_none() or ""), 15)
    assert look(turn).status == "queued"
    assert not fake_llama.requests
    fake_llama.set(slots_fault=None, loading=False)
    assert ended(turn).status == "done"
    assert servers.why_none() is None


def test_a_model_that_is_served_nowhere_waits_with_its_reason(
    fake_llama: FakeLlama, start_worker: StartProcess
) -> None:
    start_worker(LLAMA_SERVERS=fake_llama.url)
    turn = factories.sent(factories.conversation(model="gone"), "hello")
    eventually(lambda: servers.why_none() is None)
    assert servers.why_none("gone") == "No server has the model 'gone' at the moment; served: scripted."
    assert ended(factories.sent(factories.conversation(), "hello")).status == "done"
    assert look(turn).status == "queued"


def test_slots_that_somebody_else_keeps_busy_cost_a_turn_its_time_and_no_attempt(start_worker: StartProcess) -> None:
    with FakeLlama(slots=1) as server:
        worker = start_worker(LLAMA_SERVERS=server.url)
        eventually(lambda: Server.objects.filter(state="ready").exists())
        server.set(slots_fault="busy")
        turn = factories.sent(words="hello")
        eventually(lambda: "does not stop slot" in worker.output(), servers.QUIET_SECONDS + 10)
        eventually(lambda: look(turn).status == "queued")
        assert Generation.objects.get(pk=turn.generation.pk).attempt == 0
        assert not server.requests
        server.set(slots_fault=None)
        assert ended(turn).status == "done"


def test_a_wrong_key_is_named(start_worker: StartProcess) -> None:
    with FakeLlama(api_key="right") as server:
        start_worker(LLAMA_SERVERS=server.url.replace("//", "//:wrong@"))
        eventually(lambda: "API key" in (servers.why_none() or ""))
        assert "wrong" not in (servers.why_none() or "")


def test_two_addresses_of_one_process_are_told_apart_from_two_servers(
    fake_llama: FakeLlama, start_worker: StartProcess
) -> None:
    start_worker(LLAMA_SERVERS=f"{fake_llama.url},{fake_llama.url.replace('127.0.0.1', 'localhost')}")
    eventually(lambda: Server.objects.filter(trouble__contains="same process").exists())
    eventually(lambda: Server.objects.filter(state="ready").count() == 1)
    assert ended(factories.sent(words="hello")).status == "done"


def test_a_server_that_comes_back_with_fewer_slots_is_not_sent_a_wrapping_id(start_worker: StartProcess) -> None:
    with FakeLlama(slots=3) as server:
        start_worker(LLAMA_SERVERS=server.url)
        chats = [factories.conversation() for _ in range(3)]
        for turn in [factories.sent(chat, "hello") for chat in chats]:
            ended(turn)
        server.options.slots = 1
        server.restart()
        for turn in [factories.sent(chat, "What was my first message?") for chat in chats]:
            assert ended(turn).text == "Your first message was: hello"
        assert {record.id_slot for record in server.requests[3:]} == {0}
        assert Slot.objects.filter(condition="gone").count() == 2


@pytest.mark.parametrize("text", ["emoji 👍🏽 split", "line\u2028separator", "nul\x00byte", "e\u0301 עברית 中文"])
def test_text_arrives_as_the_model_wrote_it_but_for_what_cannot_be_stored(
    text: str, fake_llama: FakeLlama, start_worker: StartProcess
) -> None:
    fake_llama.script(Script(pieces=tuple(text)))
    start_worker(LLAMA_SERVERS=fake_llama.url)
    view = ended(factories.sent(words="hello"))
    assert (view.status, view.text) == ("done", text.replace("\x00", ""))


@pytest.mark.parametrize(("attempt", "status"), [(1, "queued"), (3, "failed")])
def test_a_fault_of_ours_is_an_attempt_like_any_and_not_repeated_for_ever(
    attempt: int, status: str, fake_llama: FakeLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(asking, "body", faulty)
    claim = factories.running(on=factories.server(url=fake_llama.url, slots=4))
    Generation.objects.filter(pk=claim.generation).update(attempt=attempt)
    run = running.Run(replace(claim, attempt=attempt), Watch(), Renewal(), Writer())
    run.thread.start()
    run.thread.join()
    view = look(claim)
    assert view.status == status
    assert (view.error or {}).get("code") == (None if status == "queued" else "internal")
    assert status == "queued" or "worker's log" in said_to_a_person(view)
    assert not Slot.objects.filter(phase="busy").exists()


def test_reasoning_is_stored_apart_from_the_answer(fake_llama: FakeLlama, start_worker: StartProcess) -> None:
    fake_llama.script(Script(text="Four.", reasoning="Two and two."))
    start_worker(LLAMA_SERVERS=fake_llama.url)
    view = ended(factories.sent(words="2 + 2?"))
    assert (view.status, view.text, view.reasoning.strip()) == ("done", "Four.", "Two and two.")
