"""Workers, real processes, on the scripted llama-server: turns, leases, stops."""

import re
import uuid
from itertools import pairwise

import pytest
import requests
from django.db.models import Q

from conversations import actions, sending, turns
from conversations.models import Conversation, Generation, Message
from slots import leases
from slots.models import PastLease, Slot
from tests import factories
from tests.answers import ended, look, written
from tests.eventually import eventually
from tests.fake_llama import FakeLlama, Script, default_answer
from tests.llama import LlamaProcess
from tests.stack import StartProcess

pytestmark = pytest.mark.django_db(transaction=True)

SLOW = "[[tokens=400 rate=40]]"


def quiet(server: FakeLlama) -> bool:
    return not any(slot["is_processing"] for slot in requests.get(f"{server.url}/slots", timeout=5).json())


def ask(where: Conversation, words: str) -> sending.Turn:
    return factories.sent(where, words)


def test_ten_people_on_four_slots_all_get_their_answers(fake_llama: FakeLlama, start_worker: StartProcess) -> None:
    people = [factories.conversation(factories.person(f"person{number}")) for number in range(10)]
    asked = [ask(where, f"Question of {where.owner.username} [[tokens=40 rate=100]]") for where in people]
    start_worker(LLAMA_SERVERS=fake_llama.url)
    running = []

    def all_ended() -> bool:
        running.append(Generation.objects.filter(status="running").count())
        return not Generation.objects.filter(status__in=Generation.LIVE).exists()

    eventually(all_ended, 60)
    for turn in asked:
        view = look(turn)
        assert (view.status, view.text) == ("done", default_answer(turn.message.text, 40))
    assert max(running) >= 3
    assert fake_llama.most_deferred == 0
    assert set(fake_llama.most_at_once.values()) == {1}
    spans = PastLease.objects.filter(phase="busy").order_by("slot_id", "began_at")
    assert all(a.slot_id != b.slot_id or a.ended_at <= b.began_at for a, b in pairwise(spans))


def test_the_next_turn_reads_only_what_is_new(fake_llama: FakeLlama, start_worker: StartProcess) -> None:
    start_worker(LLAMA_SERVERS=fake_llama.url)
    where = factories.conversation()
    first = ended(ask(where, "A long first message. " * 40))
    second = ended(ask(where, "And then?"))
    assert first.timings
    assert second.timings
    assert first.timings["prompt_n"] > 100
    assert second.timings["prompt_n"] < 30
    assert second.timings["cache_n"] >= first.timings["prompt_n"]
    assert second.timings["replay_cause"] is None


def test_a_lease_revoked_between_turns_is_replayed_elsewhere_and_still_knows_the_first_message(
    start_worker: StartProcess,
) -> None:
    with FakeLlama(slots=2) as server:
        start_worker(LLAMA_SERVERS=server.url)
        where = factories.conversation()
        ended(ask(where, "My name is Ada."))
        before = eventually(lambda: Slot.objects.filter(holder=where.pk, phase="idle").first())
        assert before
        leases.revoke(before.pk, before.fence)
        elsewhere, here = (factories.leased(before.server) for _ in range(2))
        assert here.slot == before.pk
        leases.release(elsewhere, 1, 1)
        again = ended(ask(where, "What was my first message?"))
        assert again.text == "Your first message was: My name is Ada."
        assert again.timings
        assert again.timings["replay_cause"] == "evicted"
        assert again.timings["cache_n"] == 0
        assert server.requests[-1].slot != before.id_slot
        assert server.requests[-1].body["cache_prompt"] is False


def test_a_request_names_its_slot_and_nothing_of_a_person_s_params_but_what_is_known(
    fake_llama: FakeLlama, start_worker: StartProcess
) -> None:
    start_worker(LLAMA_SERVERS=fake_llama.url)
    hostile = {"n": 4, "n_cache_reuse": 16, "id_slot": 3, "cache_prompt": True, "lora": [], "max_tokens": 5}
    ended(ask(factories.conversation(params=hostile), "hello"))
    body = fake_llama.requests[0].body
    assert type(body["id_slot"]) is int
    assert body["max_tokens"] == 5
    assert not {"n", "n_cache_reuse", "lora"} & set(body)


def test_two_workers_share_the_work_and_no_slot(fake_llama: FakeLlama, start_worker: StartProcess) -> None:
    workers = [start_worker(LLAMA_SERVERS=fake_llama.url) for _ in range(2)]
    asked = [ask(factories.conversation(), f"Question {number}") for number in range(12)]
    assert {ended(turn).status for turn in asked} == {"done"}
    assert set(fake_llama.most_at_once.values()) == {1}
    assert len(fake_llama.requests) == 12
    assert all(worker.process.poll() is None for worker in workers)


def test_somebody_else_s_request_on_an_idle_slot_is_noticed_before_the_next_one(
    fake_llama: FakeLlama, start_worker: StartProcess
) -> None:
    start_worker(LLAMA_SERVERS=fake_llama.url)
    where = factories.conversation()
    ended(ask(where, "hello"))
    slot = eventually(lambda: Slot.objects.filter(holder=where.pk, phase="idle").first())
    assert slot
    foreign = {"messages": [{"role": "user", "content": "psst"}], "id_slot": slot.id_slot}
    requests.post(f"{fake_llama.url}/v1/chat/completions", json=foreign, timeout=10).raise_for_status()
    again = ended(ask(where, "What was my first message?"))
    assert again.timings
    assert (again.timings["replay_cause"], again.timings["cache_n"]) == ("foreign", 0)
    assert again.text == "Your first message was: hello"


class TestStop:
    def test_while_the_answer_is_written_keeps_what_was_shown_and_frees_the_slot(
        self, fake_llama: FakeLlama, start_worker: StartProcess
    ) -> None:
        start_worker(LLAMA_SERVERS=fake_llama.url)
        where = factories.conversation()
        turn = ask(where, f"Go on for ever {SLOW}")
        shown = written(turn).text
        turns.cancel(where.owner_id, turn.generation.pk)
        eventually(lambda: quiet(fake_llama), 2, what="the slot to be quiet within two seconds")
        view = ended(turn)
        assert view.status == "cancelled"
        assert view.text.startswith(shown)
        assert default_answer(turn.message.text, 400).startswith(view.text)
        eventually(lambda: Slot.objects.filter(holder=where.pk, phase="idle").exists())
        following = ended(ask(where, "And now?"))
        assert following.timings
        assert following.timings["cache_n"] > 10
        assert following.timings["prompt_n"] < 30

    def test_while_the_prompt_is_read_frees_the_slot(self, fake_llama: FakeLlama, start_worker: StartProcess) -> None:
        start_worker(LLAMA_SERVERS=fake_llama.url)
        where = factories.conversation()
        turn = ask(where, "word " * 1500 + "[[prefill=200]]")
        eventually(lambda: any(record.started for record in fake_llama.requests))
        turns.cancel(where.owner_id, turn.generation.pk)
        eventually(lambda: quiet(fake_llama), 2, what="the slot to be quiet within two seconds")
        view = ended(turn)
        assert (view.status, view.text) == ("cancelled", "")

    def test_on_a_server_without_resumable_streams_frees_the_slot_too(
        self, fake_llama: FakeLlama, start_worker: StartProcess
    ) -> None:
        fake_llama.set(streams_route=False)
        start_worker(LLAMA_SERVERS=fake_llama.url)
        turn = ask(factories.conversation(), SLOW)
        written(turn)
        turns.cancel(turn.generation.owner_id, turn.generation.pk)
        eventually(lambda: quiet(fake_llama), 2, what="the slot to be quiet within two seconds")
        assert ended(turn).status == "cancelled"

    def test_a_server_that_does_not_react_holds_the_slot_and_not_the_person(self, start_worker: StartProcess) -> None:
        with FakeLlama(slots=1) as server:
            server.script(Script(tokens=400, rate=40, fault="wedge", after=10, times=1))
            start_worker(LLAMA_SERVERS=server.url)
            turn = ask(factories.conversation(), "hello")
            written(turn)
            turns.cancel(turn.generation.owner_id, turn.generation.pk)
            assert ended(turn).status == "cancelled"
            eventually(lambda: Slot.objects.filter(Q(condition="stopping") | Q(phase="busy")).exists())
            assert leases.acquire(uuid.uuid4(), factories.WORKER, [Slot.objects.get().server_id]) is None

    def test_deleting_the_conversation_stops_its_answer(
        self, fake_llama: FakeLlama, start_worker: StartProcess
    ) -> None:
        start_worker(LLAMA_SERVERS=fake_llama.url)
        hidden, removed = (ask(factories.conversation(), f"{SLOW} {word}") for word in ("hidden", "removed"))
        other = ask(factories.conversation(), "[[tokens=100 rate=40]]")
        for turn in (hidden, removed):
            written(turn)
        where = hidden.generation.conversation_id
        actions.delete(hidden.generation.owner_id, where)
        actions.remove(removed.generation.owner_id, removed.generation.conversation_id)
        asked = {record.asked: record for record in fake_llama.requests}
        eventually(lambda: all(asked[turn.message.text].outcome == "cancelled" for turn in (hidden, removed)), 5)
        assert ended(other).status == "done"
        eventually(lambda: not Slot.objects.filter(Q(phase="busy") | Q(condition="stopping")).exists())
        eventually(lambda: not Slot.objects.filter(holder=where).exists(), 15, what="its lease to end")
        assert ended(hidden).status == "cancelled"
        assert not Message.objects.filter(conversation=removed.generation.conversation_id).exists()


@pytest.mark.llama
def test_the_real_server_answers_ten_people_on_four_slots(real_llama: LlamaProcess, start_worker: StartProcess) -> None:
    start_worker(LLAMA_SERVERS=real_llama.url.replace("//", f"//:{real_llama.api_key}@"))
    people = [factories.conversation(params={"max_tokens": 12, "temperature": 0}) for _ in range(10)]
    asked = [ask(where, f"Name {number} animals.") for number, where in enumerate(people, 2)]
    most: list[float] = []

    def all_ended() -> bool:
        state = requests.get(f"{real_llama.url}/metrics", headers=real_llama.headers, timeout=5).text
        most.extend(float(found) for found in re.findall(r"(?m)^llamacpp:requests_deferred (\S+)", state))
        return not Generation.objects.filter(status__in=Generation.LIVE).exists()

    eventually(all_ended, 90)
    assert max(most) == 0
    for turn in asked:
        view = look(turn)
        assert (view.status, bool(view.text)) == ("done", True)
        assert view.usage
        assert view.usage["completion_tokens"] <= 12
