"""Other work than turns (titles, prewarms, parks) takes nothing from anybody, and yields to whoever sends."""

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import pairwise

import pytest
from django.db import IntegrityError, connection
from pytest_django import Settings

from slots import causes, leases, servers
from slots.client import ServerError
from slots.leases import Grant, LeaseLost
from slots.models import PastLease, Server, Slot
from tests import factories
from tests.answers import ended
from tests.eventually import eventually
from tests.factories import OTHER_WORKER, WORKER
from tests.fake_llama import FakeLlama
from tests.llama_client import in_background
from tests.stack import StartProcess
from tests.test_leases import in_threads, slot

pytestmark = pytest.mark.django_db

Work = Slot.Work
YIELDING = [Work.TITLE, Work.PREWARM, Work.PARK]


def working(work: Work, holder: uuid.UUID, *on: Server) -> Grant | None:
    return leases.acquire(holder, OTHER_WORKER, [server.pk for server in on], work=work)


def at_work(work: Work, holder: uuid.UUID, *on: Server) -> Grant:
    grant = working(work, holder, *on)
    assert grant is not None
    return grant


@pytest.mark.parametrize("work", YIELDING)
def test_a_send_takes_the_slot_back_from_what_is_done_for_its_own_conversation(work: Work) -> None:
    server = factories.server(slots=2)
    mine = factories.idle(server, kv_tokens=48, kv_task=11)
    helper = at_work(work, mine.holder, server)
    assert (helper.slot, helper.warm, helper.kv_tokens, helper.preempted) == (mine.slot, True, 48, None)
    turn = factories.leased(server, mine.holder)
    assert (turn.slot, turn.warm, turn.preempted) == (mine.slot, True, helper.stream_id)
    assert turn.fence > helper.fence
    assert PastLease.objects.get(fence=helper.fence).ended_by == "preempted"
    for stale in (lambda: leases.release(helper, 1, 1, used=False), lambda: leases.filled(helper, 9)):
        with pytest.raises(LeaseLost):
            stale()
    assert leases.renew([helper, turn]) == {turn.fence}


def test_what_a_prewarm_has_read_stays_of_use_from_when_the_server_began() -> None:
    server = factories.server(slots=1)
    reading = at_work(Work.PREWARM, uuid.uuid4(), server)
    assert not factories.leased(server, reading.holder).warm  # nothing of it may have arrived
    other = factories.server(slots=1, url="http://other.test")
    factories.idle(other)
    leases.revoke(Slot.objects.get(server=other).pk, Slot.objects.get(server=other).fence)
    begun = leases.filled(at_work(Work.PREWARM, uuid.uuid4(), other))
    assert begun.warm
    assert factories.leased(other, begun.holder).warm


@pytest.mark.parametrize("work", YIELDING)
def test_somebody_else_s_send_takes_it_only_when_there_is_nothing_else(work: Work) -> None:
    server = factories.server(slots=3)
    helped = factories.idle(server)
    helper = at_work(work, helped.holder, server)
    factories.idle(server)
    got = [factories.leased(server) for _ in range(3)]
    assert [grant.preempted for grant in got] == [None, None, helper.stream_id]
    assert (got[2].slot, got[2].warm, got[2].former) == (helper.slot, False, None)
    assert leases.acquire(uuid.uuid4(), WORKER, [server.pk]) is None, "never a turn's"
    assert causes.why_cold(helped.holder, server.pk) == "evicted"


def test_other_work_takes_nothing_from_anybody() -> None:
    server = factories.server(slots=2)
    newcomer, mine = uuid.uuid4(), factories.idle(server)
    assert working(Work.TITLE, newcomer, server) is None
    assert working(Work.PARK, newcomer, server) is None
    prewarm = at_work(Work.PREWARM, newcomer, server)
    assert (prewarm.slot == mine.slot, prewarm.warm) == (False, False)
    assert working(Work.PREWARM, uuid.uuid4(), server) is None, "an idle one is somebody's"
    assert working(Work.TITLE, newcomer, server) is None, "its own, but at work"
    factories.leased(server, mine.holder)
    assert [working(work, mine.holder, server) for work in YIELDING] == [None] * 3


def test_a_lease_that_expired_between_turns_is_free_for_a_prewarm_and_for_nothing_less() -> None:
    server = factories.server(slots=2)
    left, stays = factories.idle(server), factories.idle(server)
    factories.expire(left.slot)
    newcomer = uuid.uuid4()
    assert working(Work.TITLE, newcomer, server) is None
    prewarm = at_work(Work.PREWARM, newcomer, server)
    assert (prewarm.slot, prewarm.warm) == (left.slot, False)
    assert prewarm.former
    assert prewarm.former.holder == left.holder, "who may come back finds a file"
    assert PastLease.objects.get(holder=left.holder, phase="idle").ended_by == "expired"
    assert working(Work.PREWARM, uuid.uuid4(), server) is None
    assert factories.leased(server, stays.holder).warm


def test_other_work_does_not_make_its_conversation_look_used() -> None:
    server = factories.server(slots=3)
    left, recent = factories.idle(server), factories.idle(server)
    factories.age(left.slot, 300)
    for work in YIELDING:
        leases.release(at_work(work, left.holder, server), 100, 8, used=False)
    never = at_work(Work.PREWARM, uuid.uuid4(), server)
    leases.release(never, 100, 9, used=False)
    assert [factories.leased(server).slot for _ in range(3)] == [never.slot, left.slot, recent.slot]
    assert PastLease.objects.filter(ended_by="work_done").count() == 4


def test_a_prewarm_elsewhere_counts_as_used_when_its_conversation_had_its_last_turn() -> None:
    far, near = factories.server(slots=1, url="http://far.test"), factories.server(slots=2)
    mine = factories.idle(far)
    PastLease.objects.update(began_at=factories.ago(120), ended_at=factories.ago(100))
    leases.revoke(mine.slot, slot(mine).fence)
    leases.release(at_work(Work.PREWARM, mine.holder, near), 100, 1, used=False)
    other = factories.idle(near)
    factories.age(other.slot, 200)
    assert factories.leased(near).slot == other.slot


def test_what_is_not_a_turn_is_never_taken_over_and_reaped_without_grace(settings: Settings) -> None:
    settings.LEASE_REAP_GRACE = 5.0
    server = factories.server(slots=2)
    helper = at_work(Work.PREWARM, uuid.uuid4(), server)
    turn = factories.leased(server)
    settled()
    for grant in (helper, turn):
        factories.expire(grant.slot, ago=3)
    assert leases.take_over(helper.fence, helper.holder, OTHER_WORKER, [server.pk]) is None
    assert leases.reap() == [helper.slot]
    assert leases.take_over(turn.fence, turn.holder, OTHER_WORKER, [server.pk]) is not None


def settled() -> None:
    """Nobody takes over or reaps within some time of Postgres's start."""

    def long_ago() -> bool:
        with connection.cursor() as cursor:
            cursor.execute("SELECT clock_timestamp() > pg_postmaster_start_time() + 10 * interval '1 s'")
            return bool(cursor.fetchone()[0])

    eventually(long_ago, 20)


def test_whoever_takes_a_turn_over_learns_of_the_work_that_it_took_its_slot_from() -> None:
    server = factories.server(slots=1)
    mine = factories.idle(server)
    helper = at_work(Work.TITLE, mine.holder, server)
    turn = factories.leased(server, mine.holder)
    settled()
    factories.expire(turn.slot)
    taken = leases.take_over(turn.fence, turn.holder, OTHER_WORKER, [server.pk])
    assert taken is not None
    assert (taken.stream_id, taken.preempted) == (turn.stream_id, helper.stream_id)


def test_a_helper_on_a_server_out_of_reach_keeps_nobody_from_going_elsewhere() -> None:
    far, near = factories.server(url="http://far.test"), factories.server()
    mine = factories.idle(far)
    helper = at_work(Work.TITLE, mine.holder, far)
    assert factories.leased(near, mine.holder).server == near.pk
    left = Slot.objects.get(pk=helper.slot)
    assert (left.condition, left.stream_id, left.holder) == ("stopping", helper.stream_id, None)


@pytest.mark.django_db(transaction=True)
def test_sends_and_prewarms_at_once_never_share_a_slot_nor_give_a_holder_two() -> None:
    """16 threads, 30 holders, 6 slots, every kind of work, some of it lost to a turn while it is done."""
    server = factories.server(slots=6)
    holders = [uuid.uuid4() for _ in range(30)]
    lost: list[Grant] = []

    def work(number: int) -> None:
        for turn in range(24):
            kind = Work.TURN if number % 4 == 0 else YIELDING[(number + turn) % 3]
            try:
                holder = holders[(number * 7 + turn * 11) % len(holders)]
                grant = leases.acquire(holder, uuid.uuid4(), [server.pk], work=kind)
            except IntegrityError as error:
                assert "slot_one_per_holder" in str(error)  # noqa: PT017  both outcomes are right
                continue
            if grant:
                leases.renew([grant])
                connection.close()  # gives the others a chance to err
                try:
                    leases.release(grant, 1, 1, used=kind == Work.TURN)
                except LeaseLost:
                    assert kind != Work.TURN
                    lost.append(grant)

    in_threads(16, work)
    assert lost
    assert PastLease.objects.filter(ended_by="preempted").count() == len(lost)
    assert {grant.fence for grant in lost} == {past.fence for past in PastLease.objects.filter(ended_by="preempted")}
    for whose in ("slot_id", "holder"):
        spans = list(PastLease.objects.order_by(whose, "began_at"))
        for one, other in pairwise(spans):
            assert getattr(one, whose) != getattr(other, whose) or one.ended_at <= other.began_at
    assert not Slot.objects.filter(phase="busy").exists()


@pytest.mark.django_db(transaction=True)
class TestWithAServer:
    """A request of such work is under way when somebody sends."""

    def test_the_send_stops_it_and_what_it_had_read_is_not_read_again(self, start_worker: StartProcess) -> None:
        where = factories.conversation(system_prompt="Be brief. " * 100)
        with FakeLlama(slots=1, prefill_rate=400) as server, self.reading(server, where.pk, start_worker) as gone:
            view = ended(factories.sent(where, "Hello"))
            assert view.status == "done"
            assert view.timings
            assert view.timings["cache_n"] > 50, view.timings
            assert view.timings["replay_cause"] is None
            assert gone()
            assert server.most_at_once == {0: 1}
            assert server.most_deferred == 0

    def test_anybody_s_send_stops_it_and_finds_nothing_of_it(self, start_worker: StartProcess) -> None:
        mine, other = factories.conversation(system_prompt="Be brief. " * 100), factories.conversation()
        with FakeLlama(slots=1, prefill_rate=400) as server, self.reading(server, mine.pk, start_worker) as gone:
            view = ended(factories.sent(other, "Hello"))
            assert view.status == "done"
            assert gone()
            assert server.requests[-1].body["cache_prompt"] is False
            assert server.most_at_once == {0: 1}
            assert Slot.objects.get().holder == other.pk

    @contextmanager
    def reading(self, server: FakeLlama, holder: uuid.UUID, start_worker: StartProcess) -> Iterator[Callable[[], bool]]:
        """A prewarm of `holder` that the server is busy with; whether it broke off."""
        start_worker(LLAMA_SERVERS=server.url)
        eventually(lambda: Server.objects.filter(state="ready").exists(), 30)
        row = Server.objects.get()
        grant = at_work(Work.PREWARM, holder, row)
        broke_off, begun = threading.Event(), threading.Event()
        body = {
            "messages": [{"role": "system", "content": "Be brief. " * 100}], "max_tokens": 1, "cache_prompt": False,
            "id_slot": grant.id_slot, "stream": True, "return_progress": True, "timings_per_token": False,
        }  # fmt: skip

        def read() -> None:
            with closing(connection), servers.client_of(row).post(body, grant.stream_id) as stream:
                for _ in stream.events():
                    if not begun.is_set():
                        leases.filled(grant)
                        begun.set()

        reader = in_background(lambda: outcome(read, broke_off))
        assert begun.wait(10)
        yield lambda: reader() is None and broke_off.is_set()


def outcome(read: Callable[[], None], broke_off: threading.Event) -> None:
    try:
        read()
    except ServerError:
        broke_off.set()
