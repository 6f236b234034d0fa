"""A conversation is read ahead when its person opens it or types, where that takes nothing from anybody."""

import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from conversations import actions, ahead, sending
from conversations.ahead import Tab, Throttle
from conversations.history import GenerationView
from conversations.models import Conversation
from slots import leases
from slots.client import LlamaServer
from slots.grants import Grant
from slots.models import Park, PastLease, Server, Slot
from tests import factories
from tests.answers import ended, look, written
from tests.eventually import eventually
from tests.fake_llama import FakeLlama, Record, Script
from tests.stack import StartProcess
from tests.web import Person

LONG = "How do steam engines work? " + "word " * 300
SLOW = Script(prefill=100, match="How do steam engines work?")


def promising(name: str = "alice") -> Conversation:
    """One that has something to be read already."""
    return factories.conversation(factories.person(name), system_prompt="Be brief.")


def about_to_send(where: Conversation, *servers: Server, worker: uuid.UUID = factories.WORKER) -> Grant | None:
    return ahead.acquire(worker, [server.pk for server in servers], where.owner_id, where.pk)


@pytest.mark.django_db
class TestASlotForIt:
    """It is had only where nobody loses anything by it."""

    def test_is_a_free_one_and_yields_to_its_conversation(self) -> None:
        server = factories.server(slots=1)
        where = promising()
        grant = about_to_send(where, server)
        assert grant
        assert Slot.objects.get().work == "prewarm"
        turn = leases.acquire(where.pk, factories.OTHER_WORKER, [server.pk])
        assert turn
        assert turn.preempted == grant.stream_id

    @pytest.mark.parametrize(
        "why_not",
        [
            "idle",
            "answered there",
            "waiting",
            "warm",
            "queued",
            "deleted",
            "another's",
            "one at a time",
            "no server",
            "nothing to read",
            "waiting for any",
        ],
    )
    def test_is_not_had(self, why_not: str) -> None:
        server = factories.server(slots=2)
        where = promising()
        makes: dict[str, Callable[[], object]] = {
            "idle": lambda: [factories.idle(server) for _ in range(2)],
            "answered there": lambda: factories.leased(server),
            "waiting": lambda: factories.sent(factories.conversation(factories.person("bob"))),
            "warm": lambda: factories.idle(server, where.pk),
            "queued": lambda: factories.sent(where),
            "deleted": lambda: actions.delete(where.owner_id, where.pk),
            "another's": lambda: Conversation.objects.filter(pk=where.pk).update(owner=factories.person("bob")),
            "one at a time": lambda: Server.objects.update(grade="one_at_a_time"),
            "no server": lambda: Server.objects.update(state="draining"),
            "waiting for any": lambda: [
                Conversation.objects.filter(pk=where.pk).update(model="smollm2"),
                factories.sent(factories.conversation(factories.person("bob"))),
            ],
            "nothing to read": lambda: Conversation.objects.filter(pk=where.pk).update(system_prompt=""),
        }
        makes[why_not]()
        before = list(Slot.objects.order_by("pk").values())
        assert about_to_send(where, server) is None
        assert list(Slot.objects.order_by("pk").values()) == before

    def test_is_one_of_each_person_and_one_of_each_server(self) -> None:
        first, second = factories.server(slots=4), factories.server(slots=4, url="http://other.test:8080")
        alice, again, bob, charlie = (promising(name) for name in ("alice", "alice", "bob", "charlie"))
        assert about_to_send(alice, first, second)
        assert about_to_send(again, first, second) is None
        assert about_to_send(bob, first, second)
        assert about_to_send(charlie, first, second) is None
        assert set(Slot.objects.filter(work="prewarm").values_list("server", flat=True)) == {first.pk, second.pk}

    def test_is_given_up_for_a_turn_on_its_server_a_queue_and_a_deletion(self) -> None:
        server = factories.server(slots=4)
        where = promising()
        grant = about_to_send(where, server)
        assert grant
        assert ahead.unwelcome([grant.fence]) == set()
        other = factories.server(url="http://other.test:8080", model="another")
        factories.leased(other)
        waits = factories.sent(factories.conversation(factories.person("bob"), model="another"))
        assert ahead.unwelcome([grant.fence]) == set()
        turn = factories.leased(server)
        assert ahead.unwelcome([grant.fence]) == {grant.fence}
        leases.release(turn, 10, 1)
        assert ahead.unwelcome([grant.fence]) == set()
        type(waits.generation).objects.filter(pk=waits.generation.pk).update(model="")
        assert ahead.unwelcome([grant.fence]) == {grant.fence}
        waits.generation.delete()
        actions.delete(where.owner_id, where.pk)
        assert ahead.unwelcome([grant.fence]) == {grant.fence}


def test_a_tab_says_the_same_once_and_a_person_says_it_only_so_often() -> None:
    now = 0.0
    tab, throttle = Tab(lambda: now), Throttle(lambda: now)
    here, there = uuid.uuid4(), uuid.uuid4()
    assert [tab.news(which) for which in (here, here, there, here)] == [True, False, True, True]
    now = ahead.TAB_SECONDS
    assert tab.news(here)
    assert [throttle.takes(1) for _ in range(ahead.BURST + 1)] == [True] * ahead.BURST + [False]
    assert throttle.takes(2)
    now += 1 / ahead.PER_SECOND
    assert [throttle.takes(1), throttle.takes(1)] == [True, False]


def answered(where: Conversation, words: str) -> GenerationView:
    turn = sending.send(where.owner_id, where.pk, uuid.uuid4(), words, None, to_leaf=True)
    view = ended(turn)
    assert view.status == "done", view.error
    eventually(lambda: not Slot.objects.filter(phase="busy", holder=where.pk).exists())
    return view


def figure(view: GenerationView, name: str) -> Any:
    assert view.timings
    return view.timings[name]


def lose(where: Conversation) -> None:
    """Its lease ends, and the slot's cache is as good as another's."""
    slot = Slot.objects.get(holder=where.pk)
    leases.evict(slot.pk, slot.fence)


def read_ahead(server: FakeLlama) -> list[Record]:
    """What was sent beside turns: tokens, of which a probe's canaries have none but words."""
    return [record for record in server.journal.raw if isinstance(record.body["prompt"], list)]


def prompt_of(record: Record, server: FakeLlama) -> str:
    return str(LlamaServer(server.url).told("/detokenize", {"tokens": record.body["prompt"]})["content"])


def is_warm(where: Conversation) -> bool:
    return Slot.objects.filter(phase="idle", holder=where.pk, kv_of=where.pk, kv_tokens__gt=0).exists()


@pytest.fixture
def hints() -> Callable[[], list[tuple[int, uuid.UUID] | None]]:
    """What the workers were told since it was asked last."""
    with connection.cursor() as cursor:
        cursor.execute(f"LISTEN {ahead.CHANNEL}")
    told = connection.connection
    return lambda: [ahead.heard(one.payload) for one in told.notifies(timeout=0.3)]


@pytest.mark.django_db(transaction=True)
def test_workers_are_told_of_a_conversation_that_is_opened_or_typed_in(
    alice: Person, hints: Callable[[], list[tuple[int, uuid.UUID] | None]]
) -> None:
    where, other = (factories.conversation(factories.person("alice")) for _ in range(2))
    theirs = factories.conversation(factories.person("bob"))
    with alice.tab(where) as tab:
        assert hints() == [(alice.pk, where.pk)]
        tab.send("typing", conversation=str(where.pk))
        tab.send("typing", conversation=str(other.pk))
        tab.send("typing", conversation=str(theirs.pk), id="theirs")
        assert tab.expect("error") | {"detail": ""} == {
            "type": "error", "re": "theirs", "code": "not_found", "detail": "", "retryable": False,
        }  # fmt: skip
        assert hints() == [(alice.pk, other.pk)]
    assert ahead.heard("another version's words") is None
    client = Client()
    client.force_login(factories.person("alice"))
    for one in (where, theirs):
        assert client.get(f"/c/{one.pk}/").status_code == 200
    assert hints() == [(alice.pk, where.pk)]


@pytest.mark.django_db(transaction=True)
def test_the_next_turn_finds_all_of_it_and_nothing_of_it_is_seen(
    fake_llama: FakeLlama, start_worker: StartProcess
) -> None:
    worker = start_worker(LLAMA_SERVERS=fake_llama.url)
    where = factories.conversation(system_prompt="Be brief.")
    answered(where, LONG)
    warm = answered(where, "And then?")
    lose(where)

    ahead.hint(where.owner_id, where.pk)
    eventually(lambda: is_warm(where))
    (sent,) = read_ahead(fake_llama)
    assert (sent.body["cache_prompt"], sent.predicted_n) == (False, 1)
    assert prompt_of(sent, fake_llama).endswith(f"{warm.text}<|im_end|>\n<|im_start|>user\n")
    again = answered(where, "And then?")
    assert (figure(again, "cache_n"), figure(again, "replay_cause")) == (len(sent.body["prompt"]), None)
    assert again.text == warm.text

    new = factories.conversation(system_prompt="Be brief. " * 100)
    ahead.hint(new.owner_id, new.pk)
    eventually(lambda: is_warm(new))
    assert len(read_ahead(fake_llama)) == 2
    first = answered(new, "Hello")
    assert (figure(first, "prompt_n") < 12, figure(first, "cache_n") > 200) == (True, True)
    assert "isolation" not in worker.output().lower()


def opened(where: Conversation) -> bool:
    """Whether its slot is idle, and there is nothing more to be read before its next question."""
    return ahead.nothing_due(where.pk) and Slot.objects.filter(phase="idle", holder=where.pk).exists()


@pytest.mark.parametrize("goes_back", [True, False])
@pytest.mark.django_db(transaction=True)
def test_on_its_own_warm_slot_even_the_next_question_is_opened_once(
    start_worker: StartProcess, *, goes_back: bool
) -> None:
    with FakeLlama(slots=1, goes_back=goes_back) as server:
        start_worker(LLAMA_SERVERS=server.url)
        where = factories.conversation(system_prompt="Be brief.")
        answered(where, LONG)
        for turn in range(1, 3):
            held = Slot.objects.get().kv_tokens
            assert not opened(where)
            for _ in range(2):
                ahead.hint(where.owner_id, where.pk)
                eventually(partial(opened, where))
            *_, sent = read_ahead(server)
            assert len(read_ahead(server)) == turn
            assert sent.body["cache_prompt"] is True
            assert (sent.cache_n, sent.predicted_n) == (held, 1)
            assert prompt_of(sent, server).endswith("<|im_end|>\n<|im_start|>user\n")
            again = answered(where, "And then?")
            assert (figure(again, "cache_n"), figure(again, "replay_cause")) == (len(sent.body["prompt"]), None)


@pytest.mark.django_db(transaction=True)
def test_a_slot_that_holds_another_version_is_left_as_it_is(fake_llama: FakeLlama, start_worker: StartProcess) -> None:
    start_worker(LLAMA_SERVERS=fake_llama.url)
    where = factories.conversation()
    first = answered(where, LONG)
    answered(where, "And then?")
    before = Slot.objects.get(holder=where.pk)
    Conversation.objects.filter(pk=where.pk).update(leaf=first.message)
    ahead.hint(where.owner_id, where.pk)
    eventually(partial(opened, where))
    after = Slot.objects.get(holder=where.pk)
    assert (after.kv_tokens, after.kv_task) == (before.kv_tokens, before.kv_task)
    assert read_ahead(fake_llama) == []


@pytest.mark.parametrize("tokenizer", [False, "broken"])
@pytest.mark.django_db(transaction=True)
def test_a_server_that_does_not_tell_its_tokens_costs_nobody_a_slot(
    fake_llama: FakeLlama, start_worker: StartProcess, tokenizer: bool | str
) -> None:
    start_worker(LLAMA_SERVERS=fake_llama.url)
    warm, cold = factories.conversation(), promising("bob")
    view = answered(warm, "Hello")
    fake_llama.set(tokenizer=tokenizer)
    ahead.hint(cold.owner_id, cold.pk)
    ends = PastLease.objects.filter(work="prewarm", holder=cold.pk)
    eventually(ends.exists, what="it to be given up")
    assert ends.get().ended_by == "work_done"
    assert Slot.objects.get(holder=cold.pk).kv_of is None
    ahead.hint(warm.owner_id, warm.pk)
    eventually(partial(opened, warm))
    assert read_ahead(fake_llama) == []
    again = answered(warm, "And then?")
    assert figure(again, "cache_n") >= figure(view, "prompt_n")


@pytest.mark.django_db(transaction=True)
def test_it_ends_when_anybody_sends_or_its_person_goes_elsewhere(
    fake_llama: FakeLlama, start_worker: StartProcess
) -> None:
    first = start_worker(LLAMA_SERVERS=fake_llama.url)
    where, elsewhere = factories.conversation(), factories.conversation()
    before = answered(where, LONG)
    answered(elsewhere, "Hello")
    for one in (where, elsewhere):
        lose(one)
    fake_llama.script(SLOW)

    ahead.hint(where.owner_id, where.pk)
    eventually(lambda: len(read_ahead(fake_llama)) == 1 and read_ahead(fake_llama)[0].started)
    began = time.monotonic()
    answered(factories.conversation(factories.person("bob")), "Hello")
    assert time.monotonic() < began + 2.5, "reading ahead alone takes three seconds and a half"
    assert read_ahead(fake_llama)[0].outcome == "cancelled"

    lose(where)
    ahead.hint(where.owner_id, where.pk)
    eventually(lambda: len(read_ahead(fake_llama)) == 2 and read_ahead(fake_llama)[1].started)
    ahead.hint(where.owner_id, elsewhere.pk)
    eventually(lambda: read_ahead(fake_llama)[1].outcome == "cancelled", 3)
    eventually(lambda: is_warm(elsewhere))

    lose(where)
    ahead.hint(where.owner_id, where.pk)
    eventually(lambda: len(read_ahead(fake_llama)) == 4 and read_ahead(fake_llama)[3].started)
    first.kill()
    start_worker(LLAMA_SERVERS=fake_llama.url)
    eventually(lambda: not Slot.objects.exclude(phase="idle", condition="ready").filter(work="prewarm").exists(), 20)
    assert PastLease.objects.filter(work="prewarm", ended_by="revoked").exists()
    fake_llama.script(Script(match="And then?"))
    again = answered(where, "And then?")
    assert [message["content"] for message in fake_llama.requests[-1].messages] == [LONG, before.text, "And then?"]
    assert again.status == "done"

    lose(where)
    fake_llama.script(Script(prefill=100, match="And then?"))
    ahead.hint(where.owner_id, where.pk)
    eventually(lambda: len(read_ahead(fake_llama)) == 5 and read_ahead(fake_llama)[4].started)
    actions.delete(where.owner_id, where.pk)
    eventually(lambda: read_ahead(fake_llama)[4].outcome == "cancelled", 3)
    eventually(lambda: not Slot.objects.filter(holder=where.pk).exists(), 15)


@pytest.mark.django_db(transaction=True)
def test_who_sends_meanwhile_goes_on_with_what_was_read(fake_llama: FakeLlama, start_worker: StartProcess) -> None:
    start_worker(LLAMA_SERVERS=fake_llama.url)
    where = factories.conversation()
    answered(where, LONG)
    lose(where)
    fake_llama.script(SLOW)
    ahead.hint(where.owner_id, where.pk)
    eventually(lambda: read_ahead(fake_llama) and (LlamaServer(fake_llama.url).slots()[0].tokens or 0) > 100)
    view = answered(where, "And then?")
    assert read_ahead(fake_llama)[0].outcome == "cancelled"
    assert figure(view, "cache_n") >= 64
    assert fake_llama.most_at_once[0] == 1


@pytest.mark.django_db(transaction=True)
def test_what_was_parked_is_restored_beside_another_s_answer_and_only_then_read_on(
    start_worker: StartProcess, tmp_path: Path
) -> None:
    with FakeLlama(slots=2, slot_save_path=tmp_path) as server:
        start_worker(LLAMA_SERVERS=server.url)
        where, bob = factories.conversation(), factories.conversation(factories.person("bob"))
        answered(where, LONG)
        warm = answered(where, "And then?")
        eventually(lambda: Park.objects.filter(holder=where.pk, state="ready").exists(), what="its file")
        lose(where)
        turn = factories.sent(bob, "Go on for long [[tokens=400 rate=20]]")
        written(turn)
        ahead.hint(where.owner_id, where.pk)
        eventually(lambda: is_warm(where), what="its cache beside the answer")
        assert read_ahead(server) == []
        again = answered(where, "And then?")
        assert look(turn).live
        assert (figure(again, "prompt_n"), figure(again, "replay_cause")) == (figure(warm, "prompt_n"), None)
