"""Whatever dies, whenever: nothing shown is taken back, nothing sent is lost. Real processes, really killed."""

import json
import time

import pytest
import requests
from django.conf import settings
from django.db import connection

from conversations.models import Conversation, Generation, Message
from slots.models import PastLease, Server, Slot
from tests import factories, services
from tests.answers import Watched, ended, look, written
from tests.eventually import eventually
from tests.fake_llama import FakeLlama, default_answer
from tests.llama import LlamaProcess, fake_llama_process
from tests.stack import StartProcess

pytestmark = pytest.mark.django_db(transaction=True)

TOKENS = 120
STEADY = f"Tell me a long story. [[tokens={TOKENS} rate=30]]"
STORY = default_answer(STEADY, TOKENS)


def address(server: LlamaProcess) -> str:
    return server.url.replace("//", f"//:{server.api_key}@") if server.api_key else server.url


def test_a_worker_killed_in_the_middle_of_an_answer_costs_one_time_to_live_and_no_token(
    fake_llama: FakeLlama, start_worker: StartProcess
) -> None:
    first = start_worker(LLAMA_SERVERS=fake_llama.url)
    tokens = 4 * TOKENS  # so that it lasts until the second worker is there
    words = f"Tell me a long story. [[tokens={tokens} rate=30]]"
    story = default_answer(words, tokens)
    turn = factories.sent(words=words)
    written(turn)
    watched = Watched(turn)
    second = start_worker(LLAMA_SERVERS=fake_llama.url)
    eventually(lambda: "worker=" in second.output(), what="the second worker to be there")
    first.kill()
    killed_at = time.monotonic()
    before = look(turn).seq
    eventually(lambda: look(turn).seq > before + 1, settings.LEASE_TTL + 3, what="another worker to go on")
    assert time.monotonic() - killed_at < settings.LEASE_TTL + 3
    view = watched.until_ended()
    assert (view.status, view.text) == ("done", story)
    assert Message.objects.get(pk=view.message).text == story
    assert len(fake_llama.requests) == 1, "the answer was asked for again instead of being read on"
    assert view.usage
    assert view.usage["completion_tokens"] == tokens + 1
    ends = PastLease.objects.filter(phase="busy").order_by("fence").values_list("ended_by", flat=True)
    eventually(lambda: list(ends.all()) == ["taken_over", "turn_done"])


def test_what_the_server_wrote_while_no_worker_lived_is_used(fake_llama: FakeLlama, start_worker: StartProcess) -> None:
    turn = factories.sent(words=STEADY)
    first = start_worker(LLAMA_SERVERS=fake_llama.url)
    written(turn)
    first.kill()
    eventually(lambda: fake_llama.requests[0].ended, 10, what="the server to finish alone")
    assert look(turn).live
    start_worker(LLAMA_SERVERS=fake_llama.url)
    assert ended(turn).text == STORY
    assert len(fake_llama.requests) == 1


def test_whoever_takes_over_many_answers_needs_no_connection_for_each(start_worker: StartProcess) -> None:
    with FakeLlama(slots=8) as server:
        first = start_worker(LLAMA_SERVERS=server.url)
        asked = [factories.sent(factories.conversation(), f"Number {number}. {STEADY}") for number in range(8)]
        for turn in asked:
            written(turn)
        first.kill()
        second = start_worker(LLAMA_SERVERS=server.url, DATABASE_POOL="8")
        for turn in asked:
            assert ended(turn).text == default_answer(turn.message.text, TOKENS)
        assert "away" not in second.output()


def test_a_worker_asked_to_end_hands_over_at_once(fake_llama: FakeLlama, start_worker: StartProcess) -> None:
    first = start_worker(LLAMA_SERVERS=fake_llama.url, LEASE_TTL="60")
    turn = factories.sent(words=STEADY)
    written(turn)
    start_worker(LLAMA_SERVERS=fake_llama.url)
    watched = Watched(turn)
    assert first.terminate() == 0
    assert watched.until_ended(timeout=20).text == STORY  # far less than the first worker's time to live
    assert len(fake_llama.requests) == 1


def test_a_draining_server_s_answers_are_gone_on_with_and_it_gets_no_new_ones(
    fake_llama: FakeLlama, start_worker: StartProcess
) -> None:
    first = start_worker(LLAMA_SERVERS=fake_llama.url)
    turn = factories.sent(words=STEADY)
    written(turn)
    Server.objects.update(state=Server.State.DRAINING)
    first.kill()
    start_worker(LLAMA_SERVERS=fake_llama.url)
    following = factories.sent(factories.conversation(), "hello")
    assert ended(turn).text == STORY
    assert look(following).status == "queued"
    assert len(fake_llama.requests) == 1


def test_a_server_without_resumable_streams_goes_on_from_the_stored_text(
    fake_llama: FakeLlama, start_worker: StartProcess
) -> None:
    fake_llama.set(streams_route=False)
    first = start_worker(LLAMA_SERVERS=fake_llama.url)
    turn = factories.sent(words=STEADY)
    written(turn)
    watched = Watched(turn)
    first.kill()
    start_worker(LLAMA_SERVERS=fake_llama.url)
    assert watched.until_ended().text == STORY
    again = fake_llama.requests[-1].body
    assert (again["continue_final_message"], again["add_generation_prompt"]) == (True, False)
    assert STORY.startswith(again["messages"][-1]["content"])


def test_a_worker_paused_past_its_time_to_live_changes_nothing_and_stops_nothing_when_it_wakes(
    start_worker: StartProcess,
) -> None:
    """The one slot is by then another conversation's, whose answer the sleeper must leave alone."""
    with FakeLlama(slots=1) as server:
        sleeper = start_worker(LLAMA_SERVERS=server.url)
        first = factories.sent(words=STEADY)
        written(first)
        sleeper.pause()
        start_worker(LLAMA_SERVERS=server.url)
        assert ended(first).text == STORY
        second = factories.sent(words=f"Another one. {STEADY}")
        written(second)
        calls = len(server.journal.calls)
        sleeper.resume()
        eventually(
            lambda: "lease lost" in sleeper.output() and sleeper.process.poll() is None, what="the sleeper to notice"
        )
        view = ended(second)
        assert (view.status, view.text) == ("done", default_answer(second.message.text, TOKENS))
        assert look(first).text == STORY
        assert sleeper.process.poll() is None
        assert not [call for call in server.journal.calls[calls:] if call.startswith("DELETE")]
        assert len(server.requests) == 2


def test_a_server_killed_in_the_middle_of_an_answer_is_gone_on_with_when_it_is_back(
    start_worker: StartProcess,
) -> None:
    with fake_llama_process() as server:
        start_worker(LLAMA_SERVERS=address(server))
        turn = factories.sent(words=STEADY)
        other = factories.sent(factories.conversation(factories.person("bob")), f"Bob's. {STEADY}")
        written(turn)
        watched = Watched(turn)
        server.kill()
        eventually(lambda: look(turn).status == "queued")
        queued = factories.sent(factories.conversation(), "hello")
        server.start()
        assert watched.until_ended().text == STORY
        assert ended(other).text == default_answer(other.message.text, TOKENS)
        assert ended(queued).status == "done"
        assert Generation.objects.get(pk=turn.generation.pk).attempt == 2
        timings = look(turn).timings
        assert timings
        assert timings["replay_cause"] == "server_restarted"


def test_a_server_that_dies_three_times_leaves_an_interrupted_answer_with_its_text(
    start_worker: StartProcess,
) -> None:
    with fake_llama_process() as server:
        start_worker(LLAMA_SERVERS=address(server))
        turn = factories.sent(words="[[tokens=4000 rate=30]]")
        seen = 20
        for _ in range(3):
            seen = len(written(turn, seen).text) + 20
            server.restart()
        view = ended(turn)
        assert view.status == "interrupted"
        assert view.error
        assert view.error["code"] in ("interrupted", "stream_broken")
        assert view.error["retryable"]
        assert default_answer(turn.message.text, 4000).startswith(view.text)
        assert len(view.text) >= seen - 20


def test_no_server_at_all_keeps_the_turn_in_the_queue_and_answers_when_one_comes(start_worker: StartProcess) -> None:
    with fake_llama_process() as server:
        server.kill()
        worker = start_worker(LLAMA_SERVERS=address(server))
        turn = factories.sent(words="hello")
        eventually(lambda: "does not answer" in worker.output())
        assert look(turn).status == "queued"
        server.start()
        assert ended(turn).status == "done"
        assert Generation.objects.get(pk=turn.generation.pk).attempt == 1


def test_valkey_killed_in_the_middle_of_an_answer_stops_no_answer(
    fake_llama: FakeLlama, start_worker: StartProcess
) -> None:
    worker = start_worker(LLAMA_SERVERS=fake_llama.url)
    turn = factories.sent(words=STEADY)
    written(turn)
    watched = Watched(turn)
    services.CACHE.kill()
    try:
        assert watched.until_ended().text == STORY
        assert "channel layer away" in worker.output()
    finally:
        services.CACHE.start()
    assert ended(factories.sent(factories.conversation(), "hello")).status == "done"


def test_postgres_restarted_in_the_middle_of_an_answer_loses_nothing_of_it(
    fake_llama: FakeLlama, start_worker: StartProcess
) -> None:
    worker = start_worker(LLAMA_SERVERS=fake_llama.url)
    turn = factories.sent(words=STEADY)
    written(turn)
    connection.close()
    services.DATABASE.stop()
    eventually(lambda: "kept in memory" in worker.output(), what="the writer to notice")
    services.DATABASE.start()
    watched = Watched(turn)
    view = watched.until_ended()
    assert (view.status, view.text) == ("done", STORY)
    assert len(fake_llama.requests) == 1
    assert worker.process.poll() is None


def test_a_worker_that_cannot_reach_postgres_ends_when_it_is_asked_to(start_worker: StartProcess) -> None:
    """Also when `up` and Postgres were killed before it had begun: it would be nobody's for ever."""
    worker = start_worker(DATABASE_URL="postgres://chat@127.0.0.1:9/chat", LLAMA_SERVERS="http://127.0.0.1:9")
    eventually(lambda: "storage is away" in worker.output())
    assert worker.terminate(timeout=12) == 0


def test_postgres_killed_in_the_middle_of_an_answer_loses_nothing_of_it(
    fake_llama: FakeLlama, start_worker: StartProcess
) -> None:
    start_worker(LLAMA_SERVERS=fake_llama.url)
    turn = factories.sent(words=STEADY)
    written(turn)
    connection.close()
    services.DATABASE.kill()
    services.DATABASE.start()
    assert Watched(turn).until_ended().text == STORY


def test_a_dead_worker_s_slot_is_quiet_before_another_conversation_gets_it(start_worker: StartProcess) -> None:
    """Nobody is left of the first conversation: it was deleted while its worker was dead."""
    with FakeLlama(slots=1) as server:
        first = start_worker(LLAMA_SERVERS=server.url)
        turn = factories.sent(words="[[tokens=2000 rate=30]]")
        written(turn)
        first.kill()
        Conversation.objects.all().delete()
        start_worker(LLAMA_SERVERS=server.url)
        following = factories.sent(words="hello")
        assert ended(following).text == default_answer("hello")
        eventually(lambda: server.requests[0].outcome == "cancelled")
        assert server.most_at_once == {0: 1}
        assert server.requests[1].body["cache_prompt"] is False


@pytest.mark.llama
def test_the_real_server_is_read_on_after_its_worker_was_killed(
    real_llama: LlamaProcess, start_worker: StartProcess
) -> None:
    """At temperature 1 a second try would write something else: the text can only be continuous if it is the same."""
    first = start_worker(LLAMA_SERVERS=address(real_llama))
    where = factories.conversation(params={"temperature": 1.0, "max_tokens": 120})
    turn = factories.sent(where, "Write a long story about a lighthouse.")
    written(turn, 40, timeout=60)
    watched = Watched(turn)
    start_worker(LLAMA_SERVERS=address(real_llama))
    first.kill()
    view = watched.until_ended(timeout=60)
    assert view.status == "done"
    stream = PastLease.objects.filter(holder=where.pk, phase="busy").values_list("stream_id", flat=True).distinct()
    assert len(stream) == 1
    whole = requests.get(
        f"{real_llama.url}/v1/stream", params={"conv_id": str(stream[0]), "from": "0"}, headers=real_llama.headers,
        timeout=10,
    )  # fmt: skip
    assert view.text == text_of(whole.content)
    assert Message.objects.get(pk=view.message).text == view.text
    eventually(lambda: Slot.objects.filter(holder=where.pk, phase="idle").exists())


def text_of(stream: bytes) -> str:
    """What the server itself says that it wrote."""
    events = [json.loads(line[6:]) for line in stream.split(b"\n") if line.startswith(b"data: {")]
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)
