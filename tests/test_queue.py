"""One queue: people take turns, nobody takes all, and whoever comes too late is told when to come again."""

import random
import time
import uuid
from collections import Counter
from functools import partial

import pytest
from django.db import connection
from django.db.models.functions import Now
from pytest_django import DjangoAssertNumQueries, Settings

from conversations import errors, places, queue, sending, telling, turns
from conversations.claims import Claim
from conversations.estimate import Estimate
from conversations.models import Conversation, Generation, Message, Person, Telling, Waiting
from conversations.sending import Turn
from conversations.turns import Ending
from conversations.worker.teller import Teller
from slots import leases
from slots.models import Server, Slot
from tests import factories
from tests.concurrently import at_once
from tests.factories import OTHER_WORKER, WORKER

pytestmark = pytest.mark.django_db

DONE = Ending(Generation.Status.DONE, "stop", usage={"completion_tokens": 10}, timings={"ttft_ms": None})
NAMES = ("alice", "bob", "charlie", "dora", "emil", "frida")


def new(name: str, **fields: object) -> Conversation:
    return factories.conversation(factories.person(name), **fields)


def said(name: str, count: int = 1) -> list[Turn]:
    """So many messages of one person, each in a conversation of its own."""
    return [factories.sent(new(name)) for _ in range(count)]


def order() -> list[str]:
    return list(Waiting.objects.order_by("position").values_list("owner__username", flat=True))


def answered(claim: Claim) -> None:
    """It ends, and its slot is quiet."""
    turns.finish(claim, DONE)
    leases.release(claim.grant, 10, 1)


def serve(server: Server, worker: uuid.UUID = WORKER) -> Claim | None:
    return turns.claim(worker, [server.pk])


def asked_by(claim: Claim) -> str:
    return Generation.objects.get(pk=claim.generation).owner.username


class TestOrder:
    def test_who_sends_one_after_another_s_ten_is_served_second(self) -> None:
        server = factories.server(slots=1)
        said("alice", 10)
        first = serve(server)
        assert first
        said("bob")
        answered(first)
        second = serve(server)
        assert second
        assert (asked_by(first), asked_by(second)) == ("alice", "bob")

    def test_people_take_turns_and_each_one_s_oldest_comes_first(self) -> None:
        server = factories.server(slots=1)
        sent = {name: [turn.generation.pk for turn in said(name, 3)] for name in ("alice", "bob", "charlie")}
        began: list[uuid.UUID] = []
        served: list[str] = []
        while claim := serve(server):
            served.append(asked_by(claim))
            began.append(claim.generation)
            answered(claim)
        assert served == ["alice", "bob", "charlie"] * 3
        assert [key for key in began if key in sent["bob"]] == sent["bob"]

    def test_of_two_who_wait_with_as_much_the_one_served_longer_ago_is_first(self) -> None:
        server = factories.server(slots=1)
        for name in ("alice", "bob"):
            said(name)
            claim = serve(server)
            assert claim
            answered(claim)
        said("bob")
        said("alice")
        said("charlie")
        assert order() == ["charlie", "alice", "bob"]

    def test_what_one_has_running_counts_as_a_turn(self) -> None:
        server = factories.server(slots=2)
        said("alice", 3)
        assert serve(server)
        said("bob", 2)
        assert order() == ["bob", "alice", "bob", "alice"]

    @pytest.mark.parametrize("refund", [True, False])
    def test_who_was_running_before_goes_on_before_anybody_begins(self, refund: bool) -> None:
        server = factories.server(slots=1)
        (turn,) = said("alice")
        claim = serve(server)
        assert claim
        said("bob")
        said("alice")
        turns.requeue(claim, refund)
        assert Waiting.objects.order_by("position").first() == Waiting.objects.get(pk=turn.generation.pk)
        assert Waiting.objects.get(pk=turn.generation.pk).place == 1

    def test_a_place_counts_those_before_that_wait_for_the_same_model(self) -> None:
        models = ("large", "small", "", "large", "small")
        for name, model in zip(NAMES, models, strict=False):
            factories.sent(new(name, model=model))
        found = [(one.model, one.place) for one in Waiting.objects.order_by("position")]
        assert found == [("large", 1), ("small", 1), ("", 3), ("large", 3), ("small", 3)]

    def test_the_database_s_order_is_the_one_described(self) -> None:
        """Against the rule in Python, for many queues drawn by chance."""
        rng = random.Random(7)
        server = factories.server(slots=4)
        for _ in range(12):
            said(rng.choice(NAMES), rng.randint(1, 3))
            for _ in range(rng.randint(0, 3)):
                claim = serve(server)
                if claim and rng.random() < 0.7:
                    answered(claim) if rng.random() < 0.8 else turns.requeue(claim, refund=False)
            assert list(Waiting.objects.order_by("position").values_list("pk", flat=True)) == by_the_rule()
            Slot.objects.filter(condition="stopping").update(condition="ready", stream_id=None)


def by_the_rule() -> list[uuid.UUID]:
    running = Counter(Generation.objects.filter(status="running").values_list("owner", flat=True))
    served = dict(Person.objects.values_list("pk", "served_at"))
    share, keys = Counter(running), {}
    own: Counter[int] = Counter()
    waiting = Generation.objects.filter(status="queued")
    for one in sorted(waiting, key=lambda g: (g.started_at is None, g.queued_at, g.pk)):
        share[one.owner_id] += 1
        own[one.owner_id] += 1
        at = served.get(one.owner_id)
        keys[one.pk] = (
            one.started_at is None, share[one.owner_id], own[one.owner_id],
            at.timestamp() if at else 0.0, one.queued_at, one.pk,
        )  # fmt: skip
    return sorted(keys, key=lambda key: keys[key])


class TestRunningLimit:
    def test_nobody_is_written_to_more_often_than_allowed_at_once(self, settings: Settings) -> None:
        settings.QUEUE_RUNNING_PER_PERSON = 2
        server = factories.server(slots=4)
        said("alice", 3)
        first, second = serve(server), serve(server)
        assert first
        assert second
        assert serve(server) is None
        said("bob")
        third = serve(server)
        assert third
        assert asked_by(third) == "bob"
        answered(second)
        fourth = serve(server)
        assert fourth
        assert asked_by(fourth) == "alice"

    def test_whoever_waits_for_an_own_answer_is_told_so(self, settings: Settings) -> None:
        settings.QUEUE_RUNNING_PER_PERSON = 1
        server = factories.server(slots=4)
        said("alice", 2)
        assert serve(server)
        (place,) = places.read()
        assert place.reason
        assert place.reason.startswith("1 of your answers is being written")

    def test_what_was_running_before_goes_on_whatever_began_meanwhile(self, settings: Settings) -> None:
        server = factories.server(slots=4)
        said("alice", 3)
        claim = serve(server)
        assert claim
        turns.requeue(claim, refund=False)
        assert Generation.objects.filter(pk=claim.generation, status="queued").exists()
        other = Generation.objects.filter(status="queued").exclude(pk=claim.generation).earliest("id")
        run_first(other, server)
        settings.QUEUE_RUNNING_PER_PERSON = 1
        again = serve(server)
        assert again
        assert again.generation == claim.generation
        assert serve(server) is None


def run_first(generation: Generation, server: Server) -> None:
    """Let it run, as happens while the slot of the one before it is not quiet yet."""
    grant = leases.acquire(generation.conversation_id, WORKER, [server.pk])
    assert grant
    Generation.objects.filter(pk=generation.pk).update(status="running", fence=grant.fence, started_at=Now())


class TestWaitingLimit:
    @pytest.fixture(autouse=True)
    def limits(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        settings.QUEUE_WAITING_PER_PERSON, settings.QUEUE_LENGTH = 3, 5
        monkeypatch.setattr(places, "board", places.Board())

    def test_one_person_s_messages_beyond_the_limit_are_refused_and_nothing_of_them_stored(self) -> None:
        factories.server(slots=1)
        waiting = said("alice", 3)
        before = Message.objects.count()
        with pytest.raises(errors.TooManyWaiting, match="You have 3 messages waiting") as refused:
            said("alice")
        assert refused.value.body()["retry_after"] == queue.UNKNOWN_WAIT
        assert refused.value.retryable
        assert Message.objects.count() == before
        said("bob")
        turns.cancel(waiting[0].generation.owner_id, waiting[0].generation.pk)
        said("alice")

    def test_everybody_s_together_have_a_limit_too(self) -> None:
        for name in NAMES[:5]:
            said(name)
        with pytest.raises(errors.QueueFull):
            said("frida")

    def test_a_repeated_send_that_waits_already_is_never_refused(self) -> None:
        where, client_id = new("alice"), uuid.uuid4()
        first = factories.sent(where, "Hello", client_id)
        said("alice", 2)
        said("bob", 2)
        again = factories.sent(where, "Hello", client_id)
        assert (again.generation.pk, again.created) == (first.generation.pk, False)

    def test_regenerating_waits_in_the_same_queue(self) -> None:
        server = factories.server(slots=1)
        (turn,) = said("alice")
        claim = serve(server)
        assert claim
        answered(claim)
        said("alice", 3)
        with pytest.raises(errors.TooManyWaiting):
            sending.regenerate(turn.generation.owner_id, turn.generation.message_id, uuid.uuid4())

    def test_when_to_try_again_is_what_the_first_of_them_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        said("alice", 3)
        mine, later = (
            places.Place(uuid.uuid4(), uuid.uuid4(), owner, 1, None, Estimate(low, low + 10), untold=False)
            for owner, low in ((factories.person("alice").pk, 20), (0, 5))
        )
        monkeypatch.setattr(places.board, "look", lambda: {mine.generation: mine, later.generation: later})
        with pytest.raises(errors.TooManyWaiting) as refused:
            said("alice")
        assert refused.value.body()["retry_after"] == 25

    @pytest.mark.django_db(transaction=True)
    def test_fifty_sends_at_once_do_not_pass_one_person_s_limit(self, settings: Settings) -> None:
        settings.QUEUE_WAITING_PER_PERSON, settings.QUEUE_LENGTH = 10, 500
        wheres = [new("alice") for _ in range(50)]

        def attempt(where: Conversation) -> str:
            try:
                factories.sent(where)
            except errors.TooManyWaiting as refusal:
                return refusal.code
            finally:
                connection.close()
            return "queued"

        found = Counter(at_once(*(partial(attempt, where) for where in wheres)))
        assert found == {"queued": 10, "too_many_waiting": 40}
        assert Waiting.objects.count() == 10


class TestSeveralWorkers:
    @pytest.mark.django_db(transaction=True)
    def test_whoever_claims_the_order_is_the_same_and_nobody_is_served_twice(self) -> None:
        server = factories.server(slots=1)
        for name in NAMES[:3]:
            said(name, 4)
        expected = list(NAMES[:3]) * 4
        served: list[str] = []
        claimed: list[uuid.UUID] = []
        for _ in range(12):
            both = at_once(*(partial(claim_and_close, server, worker) for worker in (WORKER, OTHER_WORKER)))
            (claim,) = filter(None, both)
            served.append(asked_by(claim))
            claimed.append(claim.generation)
            answered(claim)
        assert served == expected
        assert len(set(claimed)) == 12

    def test_only_one_tells_the_places_until_it_falls_silent(self) -> None:
        assert telling.lead(WORKER)
        assert not telling.lead(OTHER_WORKER)
        assert telling.lead(WORKER)
        Telling.objects.update(until=Now())
        assert telling.lead(OTHER_WORKER)
        assert not telling.lead(WORKER)


def claim_and_close(server: Server, worker: uuid.UUID) -> Claim | None:
    try:
        return serve(server, worker)
    finally:
        connection.close()


class TestTelling:
    @pytest.fixture
    def told(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
        heard: list[tuple[str, int]] = []

        def publish(conversation: uuid.UUID, *frames: dict[str, object]) -> None:
            heard.extend((str(frame["generation"]), int(str(frame["place"]))) for frame in frames)

        monkeypatch.setattr("conversations.events.publish", publish)
        return heard

    def test_each_is_told_once_and_again_only_when_something_has_changed(self, told: list[tuple[str, int]]) -> None:
        waiting = [str(turn.generation.pk) for name in NAMES[:3] for turn in said(name)]
        teller = Teller(WORKER)
        tell(teller)
        tell(teller)
        assert told == [(key, place) for place, key in enumerate(waiting, 1)]
        told.clear()
        turns.cancel(factories.person("alice").pk, uuid.UUID(waiting[0]))
        tell(teller)
        assert told == [(waiting[1], 1), (waiting[2], 2)]

    def test_it_is_not_read_more_often_than_once_a_second(self, told: list[tuple[str, int]]) -> None:
        said("alice")
        teller = Teller(WORKER)
        teller.tell()
        said("bob")
        teller.tell()
        assert len(told) == 1
        assert 0 < teller.due_in() <= 1

    def test_a_second_worker_says_nothing(self, told: list[tuple[str, int]]) -> None:
        said("alice")
        tell(Teller(WORKER))
        tell(Teller(OTHER_WORKER))
        assert len(told) == 1

    def test_the_number_of_queries_does_not_grow_with_those_who_wait(
        self, django_assert_num_queries: DjangoAssertNumQueries
    ) -> None:
        factories.server(slots=2)
        said("alice")
        with django_assert_num_queries(6):
            places.read()
        for name in NAMES:
            said(name, 3)
        with django_assert_num_queries(6):
            places.read()


def tell(teller: Teller) -> None:
    """As if a second had gone by."""
    teller._next = time.monotonic()
    teller.tell()
