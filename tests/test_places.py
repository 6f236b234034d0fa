"""Whoever waits sees the place move, and why nothing moves, without a reload."""

import time
from contextlib import ExitStack
from datetime import timedelta
from itertools import groupby

import pytest
from django.db.models import F

from conversations import telling, turns
from conversations.models import Generation
from conversations.sending import Turn
from slots.models import Server
from tests import factories, worker
from tests.answers import written
from tests.fake_llama import FakeLlama, Script
from tests.stack import StartProcess
from tests.test_sse import asking
from tests.web import Person, Tab, Web

pytestmark = pytest.mark.django_db(transaction=True)

SOON = 3.0  # seconds: it is promised within about one, and this machine may be busy
NAMES = ("alice", "bob", "charlie", "dora")


def queue_of(count: int) -> list[Turn]:
    """So many people who wait, in this order."""
    return [factories.sent(factories.conversation(factories.person(name))) for name in NAMES[:count]]


def until_place(tab: Tab, place: int, timeout: float = SOON) -> None:
    deadline = time.monotonic() + timeout
    while tab.until("generation.queued", timeout)["place"] != place:
        assert time.monotonic() < deadline, tab.frames[-3:]


def cancel(turn: Turn) -> None:
    """Without telling anybody, as if what is told were lost."""
    turns.cancel(turn.generation.owner_id, turn.generation.pk)


def test_with_one_slot_everybody_sees_the_place_go_down_step_by_step(web: Web, start_worker: StartProcess) -> None:
    with FakeLlama(slots=1) as server, ExitStack() as stack:
        server.script(Script(tokens=40, rate=40))
        waiting = queue_of(4)
        tabs = [
            stack.enter_context(web.person(name).tab(turn.message.conversation))
            for name, turn in zip(NAMES, waiting, strict=True)
        ]
        start_worker(LLAMA_SERVERS=server.url)
        for before, tab in enumerate(tabs):
            tab.until("generation.done", 30)
            told = [frame["place"] for frame in tab.frames if frame["type"] == "generation.queued"]
            assert [place for place, _ in groupby(told) if place <= before] == list(range(before, 0, -1))
            assert told == sorted(told, reverse=True), "a place went up"


def test_a_place_that_moved_is_told_though_no_worker_tells_it(web: Web) -> None:
    factories.server()
    first, second, third = queue_of(3)
    with web.person("charlie").tab(third.message.conversation) as tab:
        cancel(first)
        until_place(tab, 2)
        cancel(second)
        until_place(tab, 1)
        assert tab.quiet(1.5), "what is known is not repeated"


def test_why_nothing_moves_is_told_to_whoever_waits_and_taken_back(web: Web) -> None:
    server = factories.server()
    (turn,) = queue_of(1)
    with web.person("alice").tab(turn.message.conversation) as tab:
        for trouble, reason in (("It does not answer.", "It does not answer."), ("", None)):
            Server.objects.filter(pk=server.pk).update(trouble=trouble)
            told = tab.expect("generation.queued", SOON)
            assert (told["place"], told["reason"]) == (1, reason)
        assert tab.quiet(1.5)


def test_that_no_worker_runs_is_told_to_whoever_has_waited_for_long(web: Web) -> None:
    factories.server()
    (turn,) = queue_of(1)
    with web.person("alice").tab(turn.message.conversation) as tab:
        Generation.objects.update(queued_at=F("queued_at") - timedelta(seconds=telling.GONE_SECONDS))
        assert tab.expect("generation.queued", SOON)["reason"] == telling.NO_WORKER
        assert telling.lead(factories.WORKER)
        assert tab.expect("generation.queued", SOON)["reason"] is None


def test_after_a_reload_the_reason_is_told_again(web: Web) -> None:
    Server.objects.filter(pk=factories.server().pk).update(trouble="It does not answer.")
    (turn,) = queue_of(1)
    for _ in range(2):
        with web.person("alice").tab(turn.message.conversation) as tab:
            assert tab.expect("generation.queued", SOON)["reason"] == "It does not answer."


def test_a_turn_that_began_unheard_no_longer_shows_a_place(web: Web) -> None:
    factories.server()
    (turn,) = queue_of(1)
    with web.person("alice").tab(turn.message.conversation) as tab:
        claim = worker.claimed()
        state = tab.expect("snapshot", SOON)["messages"][1]["generation"]
        assert (state["status"], state["place"]) == ("running", None)
        assert tab.quiet(1.5)
        turns.requeue(claim, refund=False)
        until_place(tab, 1)


def test_a_server_that_goes_away_and_comes_back_is_told_to_whoever_waits(web: Web, start_worker: StartProcess) -> None:
    with FakeLlama(slots=1) as server:
        server.script(Script(tokens=2000, rate=20))
        start_worker(LLAMA_SERVERS=server.url)
        first, second = queue_of(2)
        written(first)
        with web.person("bob").tab(second.message.conversation) as tab:
            server.set(loading=True)
            while not (told := tab.until("generation.queued", 2 * SOON))["reason"]:
                pass
            assert "loading" in told["reason"]
            server.set(loading=False)
            while tab.until("generation.queued", 2 * SOON)["reason"]:
                pass
        assert Generation.objects.get(pk=first.generation.pk).status == "running"


def test_an_event_stream_tells_the_place_too(alice: Person, bob: Person) -> None:
    factories.server()
    (first,) = queue_of(1)
    where = factories.conversation(factories.person("bob"))
    with asking(bob, where) as answer:
        answer.until("generation.snapshot")
        cancel(first)
        while answer.until("generation.queued")["place"] != 1:
            pass
        (waiting,) = Generation.objects.filter(status="queued")
        bob.post(f"generations/{waiting.pk}/cancel/")
        assert answer.rest()[-1]["type"] == "generation.cancelled"
