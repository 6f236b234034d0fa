"""On a quiet server caches are saved before anybody needs their slot, and what must not be kept is overwritten."""

import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db.models import F
from pytest_django import Settings

from conversations import actions, deleting
from conversations.models import Conversation
from slots import leases, parked
from slots.client import LlamaServer
from slots.grants import Grant
from slots.models import Park, PastLease, Server, Slot
from slots.parking_ahead import PATIENCE_SECONDS, ParkingAhead
from slots.renewal import Renewal
from slots.watch import Watch
from tests import factories
from tests.answering import Answering, answering, somebody
from tests.fake_llama import FakeLlama
from tests.test_parking import check, figures, files, held, introduce, return_of, saves

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Answering]:
    with FakeLlama(slots=2, slot_save_path=tmp_path) as fake, answering(fake) as worker:
        yield worker


@pytest.fixture
def ahead(worker: Answering) -> ParkingAhead:
    watch = Watch()
    watch._reachable = frozenset({worker.server.pk})
    return ParkingAhead(factories.WORKER, watch, Renewal())


def let_be(*people: Conversation) -> None:
    """A moment passes after their turns."""
    for where in people:
        factories.age(Slot.objects.get(holder=where.pk).pk, 5)
    Park.objects.update(saved_at=F("saved_at") - timedelta(seconds=5))


def test_what_lies_in_a_file_already_is_evicted_without_a_word_and_outlives_the_process(
    worker: Answering, ahead: ParkingAhead
) -> None:
    alice, bob, carol = (somebody(name) for name in ("alice", "bob", "carol"))
    left = {where.pk: introduce(worker, where) for where in (alice, bob)}
    ahead.round()
    assert saves(worker) == 1, "the probe's: they had their turns just now"
    let_be(alice, bob)
    before = dict(Slot.objects.values_list("holder", "used_at"))
    ahead.round()
    assert saves(worker) == 2, "one at a time"
    for _ in range(3):
        ahead.round()
    assert saves(worker) == 3
    check(worker, alice, bob)
    assert dict(Slot.objects.values_list("holder", "used_at")) == before
    assert set(Slot.objects.values_list("phase", "kv_tokens")) == {("idle", tokens) for tokens in left.values()}
    assert figures(return_of(worker, alice)) == (left[alice.pk], None), "its slot is still its own, and warm"
    introduce(worker, carol)
    assert saves(worker) == 3, "bob was evicted"
    let_be(alice, carol)
    left[alice.pk] = held(alice)
    ahead.round()
    worker.fake.restart()
    worker.probe()
    for where in (bob, alice):
        assert figures(return_of(worker, where)) == (left[where.pk], None)


def test_not_while_a_turn_runs_on_the_server_nor_again_and_again_in_vain(
    worker: Answering, ahead: ParkingAhead
) -> None:
    alice = somebody("alice")
    introduce(worker, alice)
    let_be(alice)
    busy = factories.leased(worker.server)
    ahead.round()
    assert saves(worker) == 1
    leases.release(busy, 10, 1)
    worker.fake.set(saves_fewer=1)
    for seconds in (0, 0, 5, 5):  # at once it is not looked at, and later it is
        Slot.objects.update(since=F("since") - timedelta(seconds=seconds))
        ahead.round()
    assert saves(worker) == 2
    assert PastLease.objects.filter(work="park").count() == 1
    assert not Park.objects.filter(state="ready").exists()
    assert figures(return_of(worker, alice))[1] is None


def test_whoever_sends_in_the_middle_of_it_goes_on_warm(
    worker: Answering, ahead: ParkingAhead, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = somebody("alice")
    left = introduce(worker, alice)
    let_be(alice)
    saved = LlamaServer.saved
    asked: list[Any] = []

    def sent_meanwhile(client: LlamaServer, *about: Any) -> tuple[int, int]:
        told = saved(client, *about)
        monkeypatch.setattr(LlamaServer, "saved", saved)
        asked.append(return_of(worker, alice))
        return told

    monkeypatch.setattr(LlamaServer, "saved", sent_meanwhile)
    ahead.round()
    assert figures(asked[0]) == (left, None)
    assert [row.state for row in Park.objects.exclude(state="empty")] == ["stale"]
    let_be(alice)
    ahead.round()
    check(worker, alice)
    assert Park.objects.filter(state="ready", holder=alice.pk).exists()


def of_three_the_first_is_deleted(worker: Answering) -> list[Conversation]:
    """The others, who have the two slots of the server on which her file lies."""
    people = [somebody(name) for name in ("alice", "bob", "carol")]
    for where in people:
        introduce(worker, where)
    actions.remove(people[0].owner_id, people[0].pk)
    return people[1:]


class TestWhatMustNotBeKept:
    """Counted until a slot that is nobody's has written nothing over it."""

    def test_is_overwritten_within_a_round_from_a_free_slot(self, worker: Answering, ahead: ParkingAhead) -> None:
        bob, carol = of_three_the_first_is_deleted(worker)
        assert parked.due() == 1
        ahead.round()
        assert parked.due() == 1, "no slot is free"
        actions.remove(bob.owner_id, bob.pk)
        ahead.round()
        assert parked.due() == 0
        assert set(map(tuple, files(worker).values())) == {()}
        assert not Park.objects.exclude(state="empty").exists()
        assert set(Slot.objects.values_list("phase", "condition", "stream_id")) == {
            ("free", "ready", None), ("idle", "ready", None),
        }  # fmt: skip
        assert figures(return_of(worker, carol))[1] is None

    def test_is_overwritten_from_an_idle_slot_when_none_was_free_for_long(
        self, worker: Answering, ahead: ParkingAhead
    ) -> None:
        bob, carol = of_three_the_first_is_deleted(worker)
        Park.objects.filter(state="stale").update(due_at=F("due_at") - timedelta(seconds=PATIENCE_SECONDS + 1))
        left = held(bob)
        ahead.round()
        assert parked.due() == 0
        check(worker, bob, carol)
        assert "alice" not in str(files(worker))
        assert not Slot.objects.filter(holder=bob.pk).exists()
        assert figures(return_of(worker, bob)) == (left, None)

    def test_stays_due_while_the_server_does_not_do_it(self, worker: Answering, ahead: ParkingAhead) -> None:
        alice, bob = somebody("alice"), somebody("bob")
        grant = factories.leased(worker.server)
        introduce(worker, alice)
        introduce(worker, bob)
        leases.give_back(grant)
        actions.remove(alice.owner_id, alice.pk)
        folder = worker.fake.options.slot_save_path
        worker.fake.options.slot_save_path = None
        for _ in range(2):
            ahead.round()
            assert parked.due() == 1
            assert not Slot.objects.filter(phase="busy").exists()
        assert PastLease.objects.filter(work="wipe").count() == 1, "it is let be for a while"
        worker.fake.options.slot_save_path = folder
        ahead._wipes_from.clear()  # later
        ahead.round()
        assert parked.due() == 0

    def test_costs_one_idle_cache_and_not_each_in_turn_while_the_server_does_not_do_it(
        self, worker: Answering, ahead: ParkingAhead
    ) -> None:
        bob, carol = of_three_the_first_is_deleted(worker)
        Park.objects.filter(state="stale").update(due_at=F("due_at") - timedelta(seconds=PATIENCE_SECONDS + 1))
        Server.objects.update(parking="ineffective")
        worker.fake.options.slot_save_path = None
        ahead.round()
        (gone,) = [where for where in (bob, carol) if not Slot.objects.filter(holder=where.pk).exists()]
        introduce(worker, gone)
        ahead.round()
        assert set(Slot.objects.values_list("holder", flat=True)) == {bob.pk, carol.pk}

    def test_is_overwritten_by_one_worker_at_a_time(self, worker: Answering) -> None:
        of_three_the_first_is_deleted(worker)
        assert parked.due_on([worker.server.pk])
        assert leases.acquire_to_wipe(factories.OTHER_WORKER, worker.server.pk, evicting=True)
        assert not parked.due_on([worker.server.pk])

    def test_is_found_though_its_conversation_went_while_it_was_written(
        self, worker: Answering, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        alice, bob, carol = (somebody(name) for name in ("alice", "bob", "carol"))
        for where in (alice, bob):
            introduce(worker, where)
        begin = parked.begin

        def too_late(grant: Grant, holder: uuid.UUID, *about: Any, **more: Any) -> parked.File | None:
            actions.remove(alice.owner_id, alice.pk)
            return begin(grant, holder, *about, **more)

        monkeypatch.setattr(parked, "begin", too_late)
        introduce(worker, carol)
        assert [row.holder for row in Park.objects.filter(state="ready")] == [alice.pk]
        deleting.forget_files()
        assert parked.due() == 1

    def test_is_what_lies_in_more_files_than_there_may_be(
        self, worker: Answering, ahead: ParkingAhead, settings: Settings
    ) -> None:
        alice, bob = somebody("alice"), somebody("bob")
        for where in (alice, bob):
            introduce(worker, where)
            let_be(where)
            ahead.round()
        assert Park.objects.filter(state="ready").count() == 2
        settings.LLAMA_PARKED = 1
        ahead._provided.clear()  # a worker that begins anew
        ahead.round()
        assert parked.due() == 1
        actions.remove(bob.owner_id, bob.pk)
        ahead.round()
        ahead.round()
        assert (parked.due(), Park.objects.filter(state="ready").count()) == (0, 1)
        settings.LLAMA_PARKED = 0
        before = saves(worker)
        introduce(worker, somebody("carol"))
        introduce(worker, somebody("dave"))
        ahead.round()
        assert saves(worker) == before
