"""Stop means stop: the slot is quiet on the server within two seconds, wherever the answer had come to."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import requests

from conversations import sending, turns
from conversations.history import GenerationView
from conversations.models import Conversation, Generation, Message
from slots.models import Slot
from tests import factories
from tests.administrators import administrator
from tests.answers import ended, look, written
from tests.eventually import eventually
from tests.fake_llama import FakeLlama, Script, default_answer
from tests.follower import Follower
from tests.llama import LlamaProcess
from tests.stack import StartProcess
from tests.web import Web

pytestmark = pytest.mark.django_db(transaction=True)

WITHIN = 2.0  # seconds
NEIGHBOUR = "Beside you. [[tokens=2000 rate=60]]"


def stop(turn: sending.Turn) -> None:
    turns.cancel(turn.generation.owner_id, turn.generation.pk)


def slot_of(where: Conversation) -> Slot:
    return Slot.objects.get(holder=where.pk)


def released(where: Conversation) -> Slot | None:
    return Slot.objects.filter(holder=where.pk, phase="idle").first()


def reading(url: str, where: Conversation, headers: dict[str, str]) -> bool:
    """Whether the server is at it for a conversation."""
    slot = Slot.objects.filter(holder=where.pk, phase="busy").first()
    states = requests.get(f"{url}/slots", headers=headers, timeout=5).json()
    return bool(slot and states[slot.id_slot]["is_processing"])


def streams(where: Conversation) -> sending.Turn:
    """An answer that is being written there, a new one each time: this model comes to its end when it likes."""
    for live in Generation.objects.filter(conversation=where, status__in=Generation.LIVE):
        turns.cancel(live.owner_id, live.pk)
    eventually(lambda: not Generation.objects.filter(conversation=where, status__in=Generation.LIVE).exists())
    turn = factories.sent(where, "Tell me everything that you know about the sea.")
    written(turn, 5, timeout=60)
    return turn


@contextmanager
def polled(url: str, headers: dict[str, str] | None = None) -> Iterator[None]:
    """Somebody has the page with all slots open, and then some: `/slots` is asked as fast as it answers."""
    over = threading.Event()

    def poll() -> None:
        while not over.wait(0.01):
            requests.get(f"{url}/slots", headers=headers, timeout=5)

    polling = threading.Thread(target=poll)
    polling.start()
    try:
        yield
    finally:
        over.set()
        polling.join()


def quiet_after(url: str, id_slot: int, headers: dict[str, str] | None = None, patience: float = WITHIN) -> float:
    """Seconds until the slot is quiet, at most `patience`."""
    began = time.monotonic()

    def quiet() -> bool:
        return not requests.get(f"{url}/slots", headers=headers, timeout=5).json()[id_slot]["is_processing"]

    eventually(quiet, patience, what="the slot to be quiet in time")
    return time.monotonic() - began


def batch_seconds(view: GenerationView) -> float:
    """How long the server takes for a batch of 64 prompt tokens, from what it took for those of this answer."""
    assert view.timings
    return float(view.timings["prompt_ms"]) / 1000 * 64 / float(view.timings["prompt_n"])


def test_an_answer_that_is_written_ends_where_it_was_shown_and_is_gone_on_with_from_the_cache(
    web: Web, start_worker: StartProcess
) -> None:
    """Also while somebody else's is written beside it and `/slots` is polled; and what waits in the queue at once."""
    with FakeLlama(slots=2) as server, polled(server.url):
        start_worker(LLAMA_SERVERS=server.url)
        neighbour = factories.sent(factories.conversation(), NEIGHBOUR)
        where = factories.conversation(factories.person("bob"))
        turn = factories.sent(where, "Go on for ever [[tokens=4000 rate=60]]")
        follower = Follower(web.person("bob"), turn)
        eventually(lambda: len(follower.text) > 100)
        waiting = factories.sent(factories.conversation(), "I wait")
        stop(waiting)
        assert look(waiting).status == "cancelled"
        stop(turn)
        quiet_after(server.url, slot_of(where).id_slot)
        view = ended(turn)
        assert (view.status, follower.finished()) == ("cancelled", view.text)
        assert Message.objects.get(pk=view.message).text == view.text
        assert default_answer(turn.message.text, 4000).startswith(view.text)
        kept = eventually(lambda: released(where))
        assert kept
        following = ended(factories.sent(where, "And now?"))
        assert following.timings
        assert following.timings["cache_n"] >= 0.9 * (kept.kv_tokens or 0) > 0
        assert (following.timings["prompt_n"] < 20, following.timings["replay_cause"]) == (True, None)
        stop(neighbour)
        assert (len(server.requests), set(server.most_at_once.values())) == (3, {1})


def test_a_prompt_that_is_read_is_left_where_it_is_and_its_slot_given_to_nobody_before_it_is_quiet(
    start_worker: StartProcess,
) -> None:
    """Two slots, one streams; whoever waits for the other gets it when it is quiet. Meanwhile it is shown stopping."""
    with FakeLlama(slots=2, prefill_rate=50, batch=64) as server, polled(server.url):
        start_worker(LLAMA_SERVERS=server.url)
        neighbour = factories.sent(factories.conversation(), NEIGHBOUR)
        written(neighbour)
        where = factories.conversation(factories.person("bob"))
        admin = administrator()
        admin.get("/admin/slots/slot/")  # the first look takes longer than a batch
        turn = factories.sent(where, "word " * 1000)
        eventually(lambda: len(server.requests) == 2 and server.requests[1].started is not None)
        waiting = factories.sent(factories.conversation(factories.person("carol")), "I wait")
        id_slot = slot_of(where).id_slot
        stop(turn)
        listed = admin.get("/admin/slots/slot/").content.decode()
        assert 'class="pill warn">Stopping<' in listed
        assert slot_of(where).phase == "busy"
        quiet_after(server.url, id_slot)
        view = ended(turn)
        assert (view.status, view.text) == ("cancelled", "")
        assert ended(waiting).status == "done"
        first, then = server.requests[1:3]
        assert first.outcome == "cancelled"
        assert then.arrived >= (first.ended or 0)
        assert (then.slot, then.body["cache_prompt"], server.most_deferred) == (id_slot, False, 0)


def test_a_request_that_the_server_keeps_waiting_is_stopped_too(start_worker: StartProcess) -> None:
    """Somebody else took the slot between our look at it and our request: it is never answered, nor runs later."""
    with FakeLlama(slots=1) as server:
        server.script(Script(fault="no_headers", times=1))
        start_worker(LLAMA_SERVERS=server.url)
        turn = factories.sent(factories.conversation(), "hello")
        eventually(lambda: server.requests)
        told = f"DELETE /v1/stream?conv_id={server.requests[0].stream_id}"
        stop(turn)
        eventually(lambda: told in server.journal.calls, WITHIN, what="the server to be told")
        assert ended(turn, 8).status == "cancelled"
        eventually(lambda: Slot.objects.filter(condition="ready", phase="free").exists())
        assert ended(factories.sent(factories.conversation(), "and I?")).status == "done"
        assert Generation.objects.get(pk=turn.generation.pk).attempt == 1


@pytest.mark.llama
def test_on_the_real_server_both_stop_in_time_beside_an_answer_that_is_written(
    real_llama: LlamaProcess, start_worker: StartProcess
) -> None:
    url, headers = real_llama.url, real_llama.headers
    start_worker(LLAMA_SERVERS=url.replace("//", f"//:{real_llama.api_key}@"))
    long = {"max_tokens": 1500}
    beside = factories.conversation(params=long)
    bob = factories.person("bob")
    with polled(url, headers):
        decoding = factories.conversation(bob, params=long)
        turn = factories.sent(decoding, "Write a long story about a lighthouse.")
        written(turn, 20, timeout=60)
        streams(beside)
        stop(turn)
        quiet_after(url, slot_of(decoding).id_slot, headers)
        assert ended(turn).status == "cancelled"
        kept = eventually(lambda: released(decoding))
        assert kept
        Conversation.objects.filter(pk=decoding.pk).update(params={"max_tokens": 2})
        following = ended(factories.sent(decoding, "Go on."), 60)
        assert following.timings
        assert following.timings["cache_n"] >= 0.9 * (kept.kv_tokens or 0) > 0, (following.timings, kept.kv_tokens)
        assert following.timings["replay_cause"] is None

        prefilling = factories.conversation(bob)
        for found in (0, None):
            neighbour = streams(beside)
            turn = factories.sent(prefilling, "word " * 500)
            eventually(lambda: reading(url, prefilling, headers), what="the prompt to be read")
            stop(turn)
            took = quiet_after(url, slot_of(prefilling).id_slot, headers, patience=20)
            view = ended(turn)
            # The batch that is being read and one more; on a machine that is busy with other tests they take longer.
            assert took <= max(WITHIN, 5 * batch_seconds(following)), (took, following.timings)
            assert (view.status, view.text) == ("cancelled", "")
            cached = (view.timings or {}).get("cache_n")
            assert cached == (found if found is not None else kept.kv_tokens), (view.timings, kept.kv_tokens)
            before, kept = cached or 0, eventually(lambda: released(prefilling))
            assert kept
            assert before < (kept.kv_tokens or 0) <= before + 3 * 64
            assert look(neighbour).live
    stop(neighbour)
    eventually(lambda: not Slot.objects.filter(phase="busy").exists())
