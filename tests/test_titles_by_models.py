"""What a model calls a conversation after its first answer, in a gap and on the slot that holds it."""

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import LazySettings

from conversations import actions, naming, sending, titles, turns
from conversations.history import GenerationView
from conversations.models import Conversation, Forgetful, Message
from slots.client import LlamaServer
from slots.models import PastLease, Server, Slot
from tests import factories
from tests.answers import ended, written
from tests.eventually import eventually
from tests.fake_llama import FakeLlama, Record, Script
from tests.llama import real_llama_server
from tests.stack import Process, StartProcess

pytestmark = pytest.mark.django_db(transaction=True)

ASKED = titles.REQUEST[:30]
SLOW = Script(tokens=20, rate=1, match=ASKED)


@pytest.fixture(autouse=True)
def _titles(settings: LazySettings) -> None:
    settings.TITLES = True


@pytest.fixture
def one_slot() -> Iterator[FakeLlama]:
    with FakeLlama(slots=1, n_ctx=4096) as server:
        server.script(Script(text="“Steam engines”\nand more", match=ASKED))
        yield server


def work(server: FakeLlama, start_worker: StartProcess) -> Process:
    return start_worker(LLAMA_SERVERS=server.url, TITLES="on")


def answered(where: Conversation, words: str) -> GenerationView:
    turn = sending.send(where.owner_id, where.pk, uuid.uuid4(), words, None, to_leaf=True)
    view = ended(turn)
    assert view.status == "done", view.error
    return view


def figure(view: GenerationView, name: str) -> Any:
    assert view.timings
    return view.timings[name]


def title(where: Conversation) -> str:
    return Conversation.objects.values_list("title", flat=True).get(pk=where.pk)


def of_titles(server: FakeLlama) -> list[Record]:
    return [record for record in server.requests if ASKED in record.asked]


def being_made() -> bool:
    return Slot.objects.filter(work="title").exists()


def idle() -> bool:
    return not Slot.objects.filter(phase="busy").exists()


def is_titled(where: Conversation, name: str = "Steam engines") -> None:
    eventually(lambda: title(where) == name, what="the title")
    eventually(idle)


def test_the_next_message_is_answered_at_once_and_warm_during_a_title_and_after_it(
    one_slot: FakeLlama, start_worker: StartProcess
) -> None:
    """S8. What was read for the title is no part of what the slot is recorded to hold."""
    one_slot.script(SLOW)
    work(one_slot, start_worker)
    where = factories.conversation()
    answered(where, "How do steam engines work? " + "word " * 1500)
    assert title(where) == titles.title_of("How do steam engines work? " + "word " * 1500)
    eventually(lambda: of_titles(one_slot) and of_titles(one_slot)[0].started)
    began = time.monotonic()
    during = answered(where, "And then?")
    assert time.monotonic() < began + 2, "the title alone takes five seconds"
    (first,) = of_titles(one_slot)
    assert first.outcome == "cancelled"
    assert first.cache_n > 1500
    assert (figure(during, "prompt_n") < 50, figure(during, "replay_cause")) == (True, None)

    one_slot.script(Script(text="“Steam engines”\nand more", match=ASKED))
    is_titled(where)
    shown, back = LlamaServer(one_slot.url).slots()[0], one_slot.requests[-1]
    assert Slot.objects.values_list("kv_tokens", "kv_task").get() == (shown.tokens, shown.task)
    assert (back.messages[-1]["content"], back.predicted_n) == (during.text, 1)
    after = answered(where, "And at last?")
    assert (figure(after, "prompt_n") < 20, figure(after, "replay_cause")) == (True, None)
    assert one_slot.most_at_once == {0: 1}
    assert [record.body["id_slot"] for record in one_slot.requests] == [0] * len(one_slot.requests)


def test_a_name_that_a_person_gives_meanwhile_stays(one_slot: FakeLlama, start_worker: StartProcess) -> None:
    one_slot.script(Script(text="The way that steam engines work", rate=1.5, match=ASKED))
    work(one_slot, start_worker)
    where = factories.conversation()
    answered(where, "How do steam engines work?")
    eventually(lambda: of_titles(one_slot))
    actions.change(where.owner_id, where.pk, {"title": "How do steam engines work?"})  # word for word as it was
    eventually(lambda: of_titles(one_slot)[0].outcome, 20)
    eventually(idle)
    answered(where, "And then?")
    assert title(where) == "How do steam engines work?"
    assert len(of_titles(one_slot)) == 1
    other = factories.conversation(title="Mine")
    answered(other, "Hello")
    assert not Conversation.objects.filter(title_due=True).exists()


def test_it_is_made_of_the_first_answer_that_says_something(one_slot: FakeLlama, start_worker: StartProcess) -> None:
    """Stopped in the middle is enough. What makes no title leaves the first words, and is not asked again."""
    one_slot.script(Script(fault="400", match="Refused", times=1))
    work(one_slot, start_worker)
    where = factories.conversation()
    assert ended(factories.sent(where, "Refused")).status == "failed"
    one_slot.script(Script(prefill=200, match="Read on", times=1))
    unsaid = factories.sent(where, "Read on " * 200)
    eventually(lambda: any(record.started and "Read on" in record.asked for record in one_slot.requests))
    turns.cancel(where.owner_id, unsaid.generation.pk)
    assert ended(unsaid).text == ""
    one_slot.script(Script(tokens=400, rate=20, match="for long"))
    stopped = factories.sent(where, "Go on about steam for long")
    written(stopped)
    assert (of_titles(one_slot), title(where)) == ([], "Refused")
    turns.cancel(where.owner_id, stopped.generation.pk)
    is_titled(where)
    assert ended(stopped).status == "cancelled"
    assert Message.objects.filter(conversation=where).count() == 6

    one_slot.script(Script(text="Title of the conversation so far:", match=ASKED))
    vague = factories.conversation()
    answered(vague, "Hello")
    eventually(lambda: not Conversation.objects.filter(title_due=True).exists())
    assert title(vague) == "Hello"


def test_one_that_was_just_to_be_made_when_somebody_sent_stays_due() -> None:
    """Then the newest message is an answer without words, which is no reason to keep the first ones for ever."""
    where = factories.conversation()
    turn = factories.sent(where)
    assert naming.question(where.pk) is None
    due = Conversation.objects.filter(title_due=True)
    naming.give_up(where.pk)
    assert due.exists()
    turns.cancel(where.owner_id, turn.generation.pk)
    naming.give_up(where.pk)
    assert not due.exists()


def test_who_dies_while_making_one_leaves_it_to_the_next(one_slot: FakeLlama, start_worker: StartProcess) -> None:
    one_slot.script(SLOW)
    first = work(one_slot, start_worker)
    where = factories.conversation()
    before = answered(where, "How do steam engines work?")
    eventually(lambda: of_titles(one_slot))
    first.kill()
    one_slot.script(Script(text="Steam engines", match=ASKED))
    work(one_slot, start_worker)
    eventually(lambda: not Slot.objects.filter(phase="busy").exists(), 20, what="its lease to end")
    eventually(lambda: of_titles(one_slot)[0].outcome == "cancelled", what="what it had asked to be stopped")
    assert title(where) == "How do steam engines work?"
    again = answered(where, "And then?")
    is_titled(where)
    assert [message["content"] for message in one_slot.requests[-1].messages[1::2]] == [before.text, again.text]
    assert PastLease.objects.filter(work="title", ended_by="revoked").exists()


def test_it_gives_way_to_anybody_who_sends_and_ends_with_its_conversation(
    one_slot: FakeLlama, start_worker: StartProcess
) -> None:
    one_slot.script(SLOW)
    work(one_slot, start_worker)
    where = factories.conversation()
    answered(where, "How do steam engines work?")
    eventually(lambda: of_titles(one_slot))
    began = time.monotonic()
    answered(factories.conversation(factories.person("bob"), title="Bob's own"), "Hello")
    assert time.monotonic() < began + 4, "the title alone takes 20 seconds"
    assert of_titles(one_slot)[0].outcome == "cancelled"
    answered(where, "And then?")
    eventually(lambda: len(of_titles(one_slot)) == 2)
    actions.delete(where.owner_id, where.pk)
    eventually(lambda: of_titles(one_slot)[1].outcome == "cancelled", 5)
    eventually(lambda: not Slot.objects.filter(holder=where.pk).exists(), 15)
    assert title(where) == "How do steam engines work?"


def test_a_server_that_loses_the_conversation_over_it_makes_no_more(start_worker: StartProcess) -> None:
    """What it has to read again it reads in the gap, not in front of the next answer."""
    with FakeLlama(slots=1, goes_back=False) as server:
        server.script(Script(text="Steam engines", match=ASKED))
        worker = work(server, start_worker)
        where = factories.conversation()
        answered(where, "How do steam engines work? " + "word " * 200)
        is_titled(where)
        assert "it makes no more of them" in worker.output()
        assert figure(answered(where, "And then?"), "prompt_n") < 50
        other = factories.conversation()
        answered(other, "Hello")
        answered(other, "And then?")
        assert (len(of_titles(server)), title(other)) == (1, "Hello")
        process = Server.objects.get().boot
        server.restart()
        eventually(lambda: Server.objects.filter(state="ready").exclude(boot=process).exists())
        answered(other, "Restarted?")
        eventually(lambda: of_titles(server)[1:], 30)
        assert Forgetful.objects.count() == 1


@pytest.mark.llama
def test_the_real_server_is_as_warm_after_a_title_as_before(start_worker: StartProcess) -> None:
    with real_llama_server(slots=1, slot_context=1024) as server:
        worker = start_worker(LLAMA_SERVERS=server.url.replace("//", f"//:{server.api_key}@"), TITLES="on")
        where = factories.conversation(params={"max_tokens": 40, "temperature": 0})
        words = "Explain in one sentence how a steam engine turns heat into motion. " * 4
        first = answered(where, words)
        eventually(lambda: not Conversation.objects.filter(title_due=True).exists(), 30, what="a title, or none")
        eventually(idle, 30)
        after = answered(where, "And why does it need water?")
        assert (figure(after, "prompt_n") < 50, figure(after, "replay_cause")) == (True, None), after.timings
        assert figure(after, "cache_n") > figure(first, "prompt_n")
        assert not Forgetful.objects.exists(), worker.output()
        assert titles.made(title(where), words + first.text) or title(where) == titles.title_of(words)
