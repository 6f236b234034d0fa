"""Servers that hang or fail again and again: the others are used, and nobody's attempts are spent in an instant."""

import threading
from dataclasses import replace
from itertools import pairwise

import pytest

from conversations import queue, turns
from conversations.models import Generation
from conversations.worker.running import Run
from conversations.worker.writer import Writer
from slots import client, leases, servers
from slots.models import Server, Slot
from slots.renewal import Renewal
from slots.watch import Watch
from tests import factories
from tests.answers import Watched, ended, look
from tests.eventually import eventually
from tests.fake_llama import FakeLlama, Script, default_answer
from tests.grading import tried
from tests.stack import StartProcess

pytestmark = pytest.mark.django_db(transaction=True)

TOKENS = 60


def test_a_server_that_hangs_is_left_and_used_again_only_when_it_tells_its_slots(start_worker: StartProcess) -> None:
    """Its answer stops, `/slots` is never answered, and `/health` and `/props` say that all is well."""
    with FakeLlama(slots=1) as hanging, FakeLlama(slots=1) as sound:
        hanging.script(Script(tokens=TOKENS, rate=60, fault="hang", after=20, times=1))
        sound.script(Script(tokens=TOKENS, rate=60, match="Number"))
        start_worker(LLAMA_SERVERS=f"{hanging.url},{sound.url}", LLAMA_SILENCE="1")
        eventually(lambda: Server.objects.filter(state="ready").count() == 2)
        asked = [factories.sent(factories.conversation(), f"Number {number}") for number in (1, 2)]
        shown = [Watched(turn) for turn in asked]
        eventually(lambda: len(hanging.requests) == 1)
        hanging.set(slots_fault="silent")
        texts = [watched.until_ended().text for watched in shown]
        assert texts == [default_answer(turn.message.text, TOKENS) for turn in asked]
        hung = Server.objects.get(url=hanging.url)
        eventually(lambda: Server.objects.filter(pk=hung.pk, trouble__contains="said nothing").exists(), 15)
        assert Slot.objects.get(server=hung).condition == "stopping"
        for number in range(3):
            assert ended(factories.sent(factories.conversation(), f"Other {number}"), 3).status == "done"

        Server.objects.filter(url=sound.url).update(state="draining")
        waiting = factories.sent(factories.conversation(), "I wait")
        assert "said nothing" in (servers.why_none("scripted") or "")
        assert look(waiting).status == "queued"
        assert len(hanging.requests) == 1
        hanging.set(slots_fault=None)
        assert ended(waiting).status == "done"
        assert (hanging.requests[0].outcome, hanging.most_at_once) == ("cancelled", {0: 1})


def test_a_server_that_hangs_while_nothing_is_asked_there_is_noticed_too(
    fake_llama: FakeLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "ANSWER_SECONDS", 0.3)
    server, watch = tried(fake_llama.url), Watch()
    factories.idle(server)
    watch.round()
    assert watch.reachable == [server.pk]
    fake_llama.set(slots_fault="silent")
    Server.objects.update(watched_at=None)
    watch.round()
    assert watch.reachable == []
    watch.round()
    assert "said nothing" in (servers.why_none() or "")
    fake_llama.set(slots_fault=None)
    watch.round()
    assert (watch.reachable, servers.why_none()) == ([server.pk], None)


def test_a_third_attempt_takes_its_time_on_the_same_server_and_none_on_another(start_worker: StartProcess) -> None:
    with FakeLlama() as failing, FakeLlama() as sound:
        failing.script(Script(fault="500"))
        start_worker(LLAMA_SERVERS=failing.url)
        turn = factories.sent(factories.conversation(), "hello")
        assert ended(turn).status == "failed"
        came = [record.arrived for record in failing.requests]
        gaps = [later - earlier for earlier, later in pairwise(came)]
        assert len(gaps) == 2
        assert gaps[1] >= queue.PAUSE_SECONDS

        Server.objects.create(url=sound.url)
        eventually(lambda: Server.objects.filter(state="ready").count() == 2)
        eventually(lambda: not Slot.objects.filter(condition="stopping").exists())
        factories.idle(Server.objects.get(url=sound.url))  # there is more going on there, so that it comes second
        again = factories.sent(factories.conversation(), "hello again")
        assert ended(again).status == "done"
        last = failing.requests[-1]
        assert (len(failing.requests), len(sound.requests)) == (4, 1)
        assert sound.requests[0].arrived - last.arrived < queue.PAUSE_SECONDS


def test_what_was_asked_for_three_times_is_not_asked_for_again_by_whoever_takes_it_over(fake_llama: FakeLlama) -> None:
    claim = factories.running(on=factories.server(url=fake_llama.url, slots=4))
    factories.wrote(claim, "So far")
    Generation.objects.filter(pk=claim.generation).update(attempt=turns.ATTEMPTS)
    taken = replace(claim, attempt=turns.ATTEMPTS, grant=replace(claim.grant, taken_over=True))
    run = Run(taken, Watch(), Renewal(), Writer())
    run.thread.start()
    run.thread.join(20)
    view = look(claim)
    assert (view.status, view.text) == ("interrupted", "So far")
    assert (view.error or {}).get("code") == "stream_unknown"
    assert not fake_llama.requests
    assert Generation.objects.get(pk=claim.generation).attempt == turns.ATTEMPTS
    eventually(lambda: not Slot.objects.filter(phase="busy").exists())


def test_nothing_is_sent_where_there_are_more_or_fewer_slots_than_there_were(fake_llama: FakeLlama) -> None:
    """An id beyond the last one would be taken modulo their number: somebody else's slot."""
    claim = factories.running(on=factories.server(url=fake_llama.url, slots=3))
    watch = Watch()
    run = Run(claim, watch, Renewal(), Writer())
    run.thread.start()
    run.thread.join(20)
    assert (look(claim).status, Generation.objects.get(pk=claim.generation).attempt) == ("queued", 0)
    assert not fake_llama.requests
    assert claim.grant.server not in watch.reachable


def test_a_late_batch_of_whoever_was_taken_over_changes_nothing_and_what_it_tells_late_is_known_already() -> None:
    """It commits, is paused before it publishes, and another goes on: the other begins behind what was committed."""
    claim = factories.running()
    factories.wrote(claim, "Once ", "upon ")
    factories.expire(claim.grant.slot)
    server = claim.grant.server
    taken = turns.take_overs(factories.OTHER_WORKER, [server])[0]
    assert (taken.seq, taken.text_length) == (2, len("Once upon "))
    lost = threading.Event()

    class Held:
        def lose(self) -> None:
            lost.set()

    writer = Writer()
    writing = writer.begin(claim, Held(), lambda: None)  # type: ignore[arg-type]
    writing.seq, writing.lengths = 2, [len("Once upon "), 0]
    writer.put(writing, 0, "another time", 1, claim.grant.stream_id, 300)  # type: ignore[arg-type]
    writer.round()
    assert lost.is_set()
    assert look(claim).text == "Once upon "
    assert leases.renew([claim.grant]) == set()
