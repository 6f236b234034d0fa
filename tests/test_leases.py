"""Guarantees 1, 2, 3, 5 and 7 of a lease (`slots`), on real Postgres."""

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from django.conf import settings
from django.core.checks import run_checks
from django.db import IntegrityError, connection, transaction
from pytest_django import Settings

from slots import causes, leases
from slots.leases import Grant, LeaseLost
from slots.models import PastLease, Slot
from slots.renewal import Held
from tests import factories
from tests.eventually import eventually
from tests.factories import OTHER_WORKER, WORKER

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _postgres_is_up_for_long(db: None) -> None:
    """Nobody takes over within one time to live of Postgres's start: let that be past."""
    with connection.cursor() as cursor:

        def settled() -> bool:
            wait = settings.LEASE_TTL + settings.LEASE_REAP_GRACE
            cursor.execute("SELECT clock_timestamp() > pg_postmaster_start_time() + %s * interval '1 s'", [wait])
            return bool(cursor.fetchone()[0])

        eventually(settled)


def slot(grant: Grant) -> Slot:
    return Slot.objects.get(pk=grant.slot)


def test_two_holders_get_two_slots_and_a_third_waits() -> None:
    server = factories.server(slots=2)
    first, second = factories.leased(server), factories.leased(server)
    assert first.slot != second.slot
    assert leases.acquire(uuid.uuid4(), WORKER, [server.pk]) is None


def test_postgres_refuses_a_second_slot_for_one_holder_whatever_the_code_does() -> None:
    grant = factories.leased(factories.server(slots=2))
    other = Slot.objects.exclude(pk=grant.slot)
    with pytest.raises(IntegrityError, match="slot_one_per_holder"), transaction.atomic():
        other.update(phase="busy", holder=grant.holder, worker=WORKER, work="turn", expires_at=slot(grant).expires_at)


@pytest.mark.parametrize(
    "shape",
    [
        {"holder": None},  # busy without a holder
        {"worker": None},  # busy without a worker
        {"phase": "free"},  # free with a holder
        {"condition": "stopping"},  # not ready, yet leased
        {"kv_of": None, "kv_tokens": 5},  # tokens of nobody
    ],
)
def test_postgres_refuses_a_slot_row_that_contradicts_itself(shape: dict[str, object]) -> None:
    grant = factories.leased(factories.server())
    with pytest.raises(IntegrityError), transaction.atomic():
        Slot.objects.filter(pk=grant.slot).update(**shape)


def test_the_next_turn_finds_its_own_slot_warm_with_what_the_cache_held() -> None:
    server = factories.server(slots=3)
    first = factories.idle(server, kv_tokens=48, kv_task=11)
    factories.idle(server)
    again = leases.acquire(first.holder, OTHER_WORKER, [server.pk])
    assert again is not None
    assert (again.slot, again.warm, again.kv_tokens, again.kv_task) == (first.slot, True, 48, 11)
    assert again.fence > first.fence
    assert again.stream_id != first.stream_id


def test_a_slot_that_changes_hands_is_cold_for_its_new_holder() -> None:
    server = factories.server(slots=1)
    factories.idle(server)
    grant = factories.leased(server)
    assert not grant.warm
    assert grant.kv_tokens is None
    assert slot(grant).kv_of is None


def test_the_longest_unused_idle_lease_is_evicted_and_never_a_busy_one() -> None:
    server = factories.server(slots=3)
    busy = factories.leased(server)
    old, new = factories.idle(server), factories.idle(server)
    factories.age(busy.slot, 300)
    factories.age(old.slot, 200)
    factories.age(new.slot, 100)
    assert factories.leased(server).slot == old.slot
    assert PastLease.objects.filter(holder=old.holder, ended_by="evicted").exists()


def test_an_expired_idle_lease_goes_before_a_living_one() -> None:
    server = factories.server(slots=2)
    living, expired = factories.idle(server), factories.idle(server)
    factories.age(living.slot, 100)
    factories.expire(expired.slot)
    assert factories.leased(server).slot == expired.slot
    assert PastLease.objects.filter(holder=expired.holder, ended_by="expired").exists()


def test_a_conversation_whose_lease_ended_finds_its_own_cache_again() -> None:
    server = factories.server(slots=3)
    factories.idle(server)
    mine = factories.idle(server)
    leases.revoke(mine.slot, slot(mine).fence)
    again = leases.acquire(mine.holder, WORKER, [server.pk])
    assert again is not None
    assert (again.slot, again.warm) == (mine.slot, True)


def test_a_lease_on_a_server_out_of_reach_is_left_for_another_server() -> None:
    far, near = factories.server(url="http://far.test"), factories.server(url="http://near.test")
    mine = factories.idle(far)
    again = leases.acquire(mine.holder, WORKER, [near.pk])
    assert again is not None
    assert (again.server, again.warm) == (near.pk, False)
    assert causes.why_cold(mine.holder, near.pk) == "moved"


def test_a_stale_holder_changes_nothing_and_is_told() -> None:
    server = factories.server(slots=1)
    stale = factories.leased(server)
    factories.expire(stale.slot)
    fresh = leases.take_over(stale.fence, stale.holder, OTHER_WORKER, [server.pk])
    assert fresh is not None
    before = Slot.objects.values().get(pk=stale.slot)
    with pytest.raises(LeaseLost), leases.fenced(stale):
        pytest.fail("a stale fence opened the door")
    with pytest.raises(LeaseLost):
        leases.release(stale, 1, 1)
    with pytest.raises(LeaseLost):
        leases.announce(stale)
    assert leases.renew([stale]) == set()
    assert not leases.revoke(stale.slot, stale.fence)
    assert Slot.objects.values().get(pk=stale.slot) == before


def test_a_fenced_transaction_keeps_the_slot_until_it_ends() -> None:
    grant = factories.leased(factories.server())
    with leases.fenced(grant):
        assert connection.in_atomic_block
        assert leases.renew([grant]) == {grant.fence}


def test_expiry_makes_a_lease_takeable_and_does_not_end_it() -> None:
    server = factories.server()
    grant = factories.leased(server)
    assert leases.take_over(grant.fence, grant.holder, OTHER_WORKER, [server.pk]) is None
    factories.expire(grant.slot)
    with leases.fenced(grant):
        pass
    taken = leases.take_over(grant.fence, grant.holder, OTHER_WORKER, [server.pk])
    assert taken is not None
    assert taken.taken_over
    assert taken.stream_id == grant.stream_id


def test_nobody_takes_over_or_reaps_just_after_postgres_started(settings: Settings) -> None:
    server = factories.server()
    grant = factories.leased(server)
    factories.expire(grant.slot, ago=1000)
    settings.LEASE_TTL = 1e6
    assert leases.take_over(grant.fence, grant.holder, OTHER_WORKER, [server.pk]) is None
    assert leases.reap() == []


def test_a_worker_paused_between_its_claim_and_its_first_request_asks_before_it_sends() -> None:
    grant = factories.leased(factories.server())
    assert grant.asked_at <= time.monotonic()
    long_ago = replace(grant, asked_at=grant.asked_at - settings.LEASE_TTL)
    Held(long_ago, lambda: None).confirm()
    leases.revoke(grant.slot, grant.fence)
    Held(grant, lambda: None).confirm()  # surely alive as far as its clock tells
    with pytest.raises(LeaseLost):
        Held(long_ago, lambda: None).confirm()


def test_work_that_yields_asks_before_everything_that_it_sends() -> None:
    server, holder = factories.server(slots=1), uuid.uuid4()
    prewarm = leases.acquire(holder, WORKER, [server.pk], work=Slot.Work.PREWARM)
    assert prewarm
    held = Held(prewarm, lambda: None)
    held.confirm()
    assert leases.acquire(uuid.uuid4(), WORKER, [server.pk])
    with pytest.raises(LeaseLost):
        held.confirm()
    assert held.lost.is_set()


def test_an_offered_lease_is_taken_over_at_once() -> None:
    server = factories.server()
    grant = factories.leased(server)
    leases.offer([grant])
    assert leases.take_over(grant.fence, grant.holder, OTHER_WORKER, [server.pk]) is not None


def test_a_dead_worker_s_lease_is_reaped_after_its_grace_and_its_slot_not_handed_on_before_it_is_quiet() -> None:
    server = factories.server(slots=1)
    grant = factories.leased(server)
    factories.expire(grant.slot, ago=settings.LEASE_REAP_GRACE + 1)
    assert leases.reap() == [grant.slot]
    row = slot(grant)
    assert (row.phase, row.condition, row.holder, row.stream_id) == ("free", "stopping", None, grant.stream_id)
    assert leases.acquire(uuid.uuid4(), WORKER, [server.pk]) is None
    assert not leases.stopped(grant.slot, uuid.uuid4())
    assert leases.stopped(grant.slot, grant.stream_id)
    assert not factories.leased(server).warm


def test_a_revoked_holder_is_free_to_go_elsewhere_at_once() -> None:
    server = factories.server(slots=2)
    grant = factories.leased(server)
    assert leases.revoke(grant.slot, grant.fence)
    assert factories.leased(server, grant.holder).slot != grant.slot


def test_a_new_process_ends_every_lease_and_takes_slots_it_lacks_out_of_use() -> None:
    server = factories.server(slots=3)
    busy, waiting = factories.leased(server), factories.idle(server)
    leases.empty_server(server.pk, 2)
    rows = list(Slot.objects.order_by("id_slot"))
    assert [row.condition for row in rows] == ["ready", "ready", "gone"]
    assert {row.phase for row in rows} == {"free"}
    assert {row.kv_of for row in rows} == {None}
    ended = PastLease.objects.filter(ended_by="server_restarted").values_list("holder", flat=True)
    assert set(ended) == {busy.holder, waiting.holder}
    leases.empty_server(server.pk, 4)
    assert Slot.objects.filter(condition="ready").count() == 4


def test_every_lease_that_ended_is_in_the_history_without_overlap() -> None:
    server = factories.server(slots=1)
    for _ in range(3):
        factories.idle(server)
    spans = list(PastLease.objects.order_by("fence").values_list("began_at", "ended_at"))
    assert len(spans) == 5  # three turns, two evicted waits; the third wait lasts
    assert all(one[1] <= other[0] for one, other in pairwise(spans))


def test_too_short_a_time_to_live_is_refused_at_the_start(settings: Settings) -> None:
    settings.LEASE_TTL, settings.LEASE_HEARTBEAT = 5, 2
    assert [found.id for found in run_checks()] == ["slots.E001"]


@pytest.mark.django_db(transaction=True)
def test_contending_workers_never_share_a_slot_nor_give_a_holder_two() -> None:
    """16 threads, 30 holders, 6 slots; seen from outside while the leases are held, and in the history afterwards."""
    server = factories.server(slots=6)
    holders = [uuid.uuid4() for _ in range(30)]
    held: list[object] = []
    doubled: list[object] = []

    def work(number: int) -> None:
        for turn in range(15):
            try:
                grant = leases.acquire(holders[(number * 7 + turn * 11) % len(holders)], uuid.uuid4(), [server.pk])
            except IntegrityError as error:
                assert "slot_one_per_holder" in str(error)  # noqa: PT017  both outcomes are right
                continue
            if grant:
                doubled.extend({grant.slot, grant.holder}.intersection(held))
                held.extend((grant.slot, grant.holder))
                connection.close()  # gives the others a chance to err
                held.remove(grant.slot)
                held.remove(grant.holder)
                leases.release(grant, 1, 1)

    in_threads(16, work)
    assert not doubled
    busy = PastLease.objects.filter(phase="busy").order_by("slot_id", "began_at")
    assert busy.count() > 50
    for one, other in pairwise(busy):
        assert one.slot_id != other.slot_id or one.ended_at <= other.began_at


def in_threads(count: int, work: Callable[[int], None]) -> None:
    failed: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except Exception as error:  # noqa: BLE001  shown by the test's thread
            failed.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
