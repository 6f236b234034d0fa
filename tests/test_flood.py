"""Many people and few slots, end to end: who is served, who is told what, who is refused."""

import time
import uuid
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import requests
from django.conf import settings
from django.db import transaction

from conversations.models import Conversation, Generation
from tests import factories
from tests.answers import ended, written
from tests.concurrently import at_once
from tests.eventually import eventually
from tests.fake_llama import FakeLlama
from tests.stack import StartProcess
from tests.test_api_conversations import refused
from tests.test_sse import asking
from tests.web import Frame, Person, StartWeb, Tab, Web

pytestmark = pytest.mark.django_db(transaction=True)

POOL_WAITS = settings.DATABASES["default"]["OPTIONS"]["pool"]["timeout"] + 1.0  # and what it takes to say so
SOON = 3.0  # seconds: promised is one, and this machine may be busy
ENDLESS = "[[tokens=4000 rate=20]]"
LIMITS = {"QUEUE_RUNNING_PER_PERSON": "2", "QUEUE_WAITING_PER_PERSON": "10", "QUEUE_LENGTH": "500"}


def new(name: str) -> Conversation:
    return factories.conversation(factories.person(name))


def told(tab: Tab, place: int, timeout: float = SOON) -> Frame:
    """The frame that says so."""
    deadline = time.monotonic() + timeout
    while (frame := tab.until("generation.queued", timeout))["place"] != place:
        assert time.monotonic() < deadline, tab.frames[-3:]
    return frame


def test_who_sends_one_is_not_behind_another_s_ten(start_worker: StartProcess) -> None:
    with FakeLlama(slots=1) as server:
        workers = [start_worker(LLAMA_SERVERS=server.url) for _ in range(2)]
        many = [factories.sent(new("alice"), f"[[tokens=30 rate=60]] {number}") for number in range(10)]
        written(many[0], 5)
        one = factories.sent(new("bob"), "[[tokens=30 rate=60]] me")
        assert ended(one).status == "done"
        assert [record.asked for record in server.requests].index(one.message.text) in (1, 2)
        assert {ended(turn, 40).status for turn in many} == {"done"}
        assert len(server.requests) == 11
        assert server.most_deferred == 0
        assert all(worker.process.poll() is None for worker in workers)


def test_with_four_slots_busy_three_see_their_places_move_and_keep_them_over_a_reload(
    web: Web, start_worker: StartProcess
) -> None:
    with FakeLlama(slots=4) as server, ExitStack() as stack:
        start_worker(LLAMA_SERVERS=server.url)
        busy = [factories.sent(new(f"busy{number}"), ENDLESS) for number in range(4)]
        for turn in busy:
            written(turn)
        waiting = [factories.sent(new(f"waiting{number}"), ENDLESS) for number in range(3)]
        people = [web.person(f"waiting{number}") for number in range(3)]
        tabs = [
            stack.enter_context(person.tab(turn.message.conversation))
            for person, turn in zip(people, waiting, strict=True)
        ]
        assert [places_in(tab.frames) for tab in tabs] == [1, 2, 3]
        people[0].post(f"generations/{waiting[0].generation.pk}/cancel/")
        assert told(tabs[1], 1)
        assert told(tabs[2], 2)
        with people[2].tab(waiting[2].message.conversation) as again:
            assert places_in(again.frames) == 2
        assert people[2].get(f"generations/{waiting[2].generation.pk}/").json()["place"] == 2


def places_in(frames: list[Frame]) -> int | None:
    """What the snapshot shows."""
    (snapshot,) = (frame for frame in frames if frame["type"] == "snapshot")
    place: int | None = snapshot["messages"][-1]["generation"]["place"]
    return place


def test_how_long_it_takes_is_told_to_everybody_the_same_way(web: Web, start_worker: StartProcess) -> None:
    with FakeLlama(slots=1) as server:
        start_worker(LLAMA_SERVERS=server.url)
        ended(factories.sent(new("alice"), "[[tokens=100 rate=200]]"))
        written(factories.sent(new("alice"), "[[tokens=4000 rate=20]]"))
        turn = factories.sent(new("bob"))
        bob = web.person("bob")
        with bob.tab(turn.message.conversation) as tab:

            def estimate() -> Frame | None:
                frame: Frame | None = tab.until("generation.queued")["estimate"]
                return frame

            found = eventually(estimate, SOON, what="an estimate")
        assert found
        assert 0 <= found["low"] < found["high"]
        shown = eventually(lambda: bob.get(f"generations/{turn.generation.pk}/").json()["estimate"], SOON)
        assert shown
        assert shown.keys() == {"low", "high"}
        assert Generation.objects.get(pk=turn.generation.pk).estimated_at


class TestRefusals:
    @pytest.fixture
    def strict(self, start_web: StartWeb) -> Web:
        return start_web(QUEUE_WAITING_PER_PERSON="2", QUEUE_LENGTH="3")

    def test_beyond_the_limits_nothing_is_queued_and_it_is_said_when_to_try_again(self, strict: Web) -> None:
        factories.server(slots=1)
        alice, bob = strict.person("alice"), strict.person("bob")
        for _ in range(2):
            assert alice.say(new("alice")).status_code == 202
        too_many = alice.say(new("alice"))
        body = refused(too_many, 429, "too_many_waiting")
        assert body["retryable"] is True
        assert int(too_many.headers["Retry-After"]) == body["retry_after"] > 0
        assert bob.say(new("bob")).status_code == 202
        full = bob.say(new("bob"))
        assert refused(full, 429, "queue_full")["retryable"] is True
        assert int(full.headers["Retry-After"]) > 0
        accept = {"Accept": "text/event-stream"}
        path = f"conversations/{new('bob').pk}/messages/"
        again = {"client_id": str(uuid.uuid4()), "text": "x"}
        refused(bob.post(path, again, headers=accept), 429, "queue_full")

    def test_over_the_websocket_the_same_is_an_error_that_names_its_message(self, strict: Web) -> None:
        where = [new("alice") for _ in range(3)]
        with strict.person("alice").tab() as tab:
            client_ids = [str(uuid.uuid4()) for _ in where]
            for conversation, client_id in zip(where, client_ids, strict=True):
                tab.send("send", conversation=str(conversation.pk), client_id=client_id, text="Hello")
            error = tab.until("error")
            assert (error["code"], error["client_id"]) == ("too_many_waiting", client_ids[2])
            assert error["retryable"]
            assert error["retry_after"] > 0
            tab.send("send", conversation=str(where[0].pk), client_id=client_ids[0], text="Hello")
            assert tab.until("message.created")["client_id"] == client_ids[0]


def test_fifty_sends_within_a_second_reach_four_slots_one_at_a_time(
    start_web: StartWeb, start_worker: StartProcess
) -> None:
    with FakeLlama(slots=4) as server:
        web = start_web(**LIMITS)
        start_worker(LLAMA_SERVERS=server.url, **LIMITS)
        people = [web.person(f"person{number}") for number in range(3)]
        wheres = [(person, new(f"person{number % 3}")) for number, person in enumerate(people * 17)][:50]
        outcomes = at_once(*(partial(outcome, person, where) for person, where in wheres))
        counted = Counter(status for status, _ in outcomes)
        assert set(counted) == {202, 429}
        assert counted[202] >= 30
        refusals = [answer for status, answer in outcomes if status == 429]
        assert all(int(answer.headers["Retry-After"]) > 0 for answer in refusals)
        eventually(lambda: not Generation.objects.filter(status__in=Generation.LIVE).exists(), 60)
        assert Counter(Generation.objects.values_list("status", flat=True)) == {"done": counted[202]}
        assert server.most_deferred == 0
        assert set(server.most_at_once.values()) == {1}


def outcome(person: Person, where: Conversation) -> tuple[int, requests.Response]:
    answer = person.say(where, "[[tokens=20 rate=100]]")
    return answer.status_code, answer


def test_requests_that_wait_for_others_are_not_told_that_postgres_is_away(start_web: StartWeb) -> None:
    web = start_web(DATABASE_POOL="4")
    alice = web.person("alice")
    wheres = [new("alice") for _ in range(8)]
    with ThreadPoolExecutor(len(wheres)) as pool:
        with transaction.atomic():
            assert len(Conversation.objects.select_for_update(no_key=True)) == len(wheres)
            answers = [pool.submit(outcome, alice, where) for where in wheres]
            assert not wait(answers, POOL_WAITS, FIRST_COMPLETED).done
            assert requests.get(f"{web.address}/healthz", timeout=SOON).status_code == 200
        assert [answer.result()[0] for answer in answers] == [202] * len(wheres)


class TestLongPrompt:
    """A prompt that is read for seconds: whoever waits for it sees how far it is."""

    WORDS = "[[prefill=320 text='Read.']] " + "word " * 1500

    def test_shows_how_far_it_was_read_over_the_websocket(self, alice: Person, start_worker: StartProcess) -> None:
        with FakeLlama(slots=1, batch=256) as server:
            start_worker(LLAMA_SERVERS=server.url, LLAMA_SILENCE="3")
            where = new("alice")
            with alice.tab(where) as tab:
                tab.say(where, self.WORDS)
                tab.until("generation.done", 30)
                self.check([frame for frame in tab.frames if frame["type"] == "generation.prefill"])
                assert list(tab.shown.values()) == ["Read."]
        assert len(server.requests) == 1

    def test_shows_how_far_it_was_read_in_an_event_stream(self, alice: Person, start_worker: StartProcess) -> None:
        with FakeLlama(slots=1, batch=256) as server:
            start_worker(LLAMA_SERVERS=server.url, LLAMA_SILENCE="3")
            with asking(alice, new("alice"), text=self.WORDS) as stream:
                events: list[dict[str, Any]] = stream.rest()
        self.check([event for event in events if event["type"] == "generation.prefill"])
        assert events[-1]["type"] == "generation.done"
        assert stream.text == "Read."

    def check(self, prefills: list[Frame]) -> None:
        """For longer than a server may be silent, in steps of a batch."""
        read = [frame["processed"] for frame in prefills]
        assert read == sorted(read)
        assert len(set(read)) >= 5
        assert read[-1] == prefills[-1]["total"] > 1500
        assert {frame["cached"] for frame in prefills} == {0}
