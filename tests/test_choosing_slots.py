"""Which slot a turn gets: over several servers, and at whose cost where none is free."""

import uuid
from typing import Any

import pytest
from django.db.models.functions import Now
from pytest_django import Settings

from conversations import ahead, queue, turns
from conversations.claims import Claim
from conversations.models import Conversation, Generation
from conversations.queue import FAITHFUL_SECONDS, SPARING_SECONDS
from slots import leases
from slots.leases import MOVE_SECONDS, Grant
from slots.models import Park, PastLease, Server, Slot
from tests import factories
from tests.eventually import eventually
from tests.factories import WORKER
from tests.fake_llama import FakeLlama
from tests.stack import StartProcess
from tests.test_verified_turns import answered, figure

pytestmark = pytest.mark.django_db


def serving(*sizes: int, parking: str = "effective") -> tuple[Server, ...]:
    """Servers with so many slots, which nobody has had for a while; they read a token in 5 ms and park in 50."""
    made = tuple(factories.server(size, f"http://{number}.test") for number, size in enumerate(sizes))
    Server.objects.update(parking=parking, fingerprint="same", save_ms=50.0, restore_ms=50.0, read_ms=5.0)
    Slot.objects.update(since=factories.ago(MOVE_SECONDS + 1))
    return made


def parked(on: Server, holder: uuid.UUID, tokens: int = 100, seconds_ago: float = 0) -> None:
    Park.objects.create(
        server=on, number=Park.objects.count(), name=str(holder), state="ready", holder=holder, tokens=tokens,
        saved_at=factories.ago(seconds_ago), fingerprint="same",
    )  # fmt: skip


def asked(servers: tuple[Server, ...], holder: uuid.UUID | None = None, **about: Any) -> Grant | None:
    return leases.acquire(holder or uuid.uuid4(), WORKER, [server.pk for server in servers], **about)


def got(servers: tuple[Server, ...], holder: uuid.UUID | None = None, **about: Any) -> Grant:
    grant = asked(servers, holder, **about)
    assert grant is not None
    return grant


def idle(on: Server, tokens: int, seconds: float = 10.0, holder: uuid.UUID | None = None) -> Grant:
    grant = factories.idle(on, holder, kv_tokens=tokens)
    factories.age(grant.slot, seconds)
    return grant


class TestAFreeSlot:
    def test_is_taken_where_least_is_going_on_in_proportion(self) -> None:
        small, big = serving(2, 8)
        factories.leased(small)
        for _ in range(3):
            factories.leased(big)
        assert got((small, big)).server == big.pk  # 4 of 8 are busy now, as is 1 of 2
        factories.leased(big)
        assert got((small, big)).server == small.pk

    def test_is_taken_where_idle_leases_are_few_among_those_where_as_much_is_busy(self) -> None:
        one, other = servers = serving(4, 4)
        idle(one, 100)
        assert [got(servers).server for _ in range(2)] == [other.pk, one.pk]

    def test_where_the_own_cache_still_is_comes_before_one_with_the_own_file_and_that_before_the_rest(self) -> None:
        one, other = servers = serving(3, 3)
        mine = idle(other, 100)
        leases.revoke(mine.slot, Slot.objects.get(pk=mine.slot).fence)
        parked(one, mine.holder)
        factories.leased(other)
        again = got(servers, mine.holder)
        assert (again.slot, again.warm) == (mine.slot, True)
        parked(other, (filed := uuid.uuid4()))
        assert got(servers, filed).server == other.pk, "though least is going on elsewhere"

    def test_elsewhere_is_left_alone_until_it_was_free_for_a_while(self) -> None:
        """A conversation with a file stays where that is; if it moves, then to a server with nothing to do."""
        one, other = servers = serving(1, 2)
        left = idle(one, 100)
        parked(one, (mine := uuid.uuid4()))
        Slot.objects.filter(server=other).update(since=Now())
        first = got(servers, mine, tokens=100)
        assert (first.server, PastLease.objects.get(ended_by="evicted").holder) == (one.pk, left.holder)
        leases.revoke(first.slot, first.fence)
        leases.stopped(first.slot, first.stream_id)
        idle(one, 100)
        Slot.objects.filter(server=other).update(since=factories.ago(MOVE_SECONDS + 1))
        moved = got(servers, mine, tokens=100)
        assert moved.server == other.pk
        leases.release(moved, 100, 1)
        assert got(servers, mine).slot == moved.slot

    def test_elsewhere_is_better_than_to_wait(self) -> None:
        one, other = servers = serving(1, 1)
        factories.leased(one)
        parked(one, (mine := uuid.uuid4()))
        Slot.objects.filter(server=other).update(since=Now())
        assert got(servers, mine).server == other.pk

    def test_a_file_that_its_server_cannot_go_on_from_counts_for_nothing(self) -> None:
        one, other = servers = serving(2, 2)
        factories.leased(one)
        parked(one, (mine := uuid.uuid4()))
        Server.objects.filter(pk=one.pk).update(fingerprint="another model")
        assert got(servers, mine).server == other.pk


class TestTheVictim:
    def test_is_whose_history_is_read_again_soonest_and_never_a_busy_one(self) -> None:
        (server,) = servers = serving(4, parking="off")
        busy, long, short, shorter = factories.leased(server), idle(server, 800), idle(server, 90), idle(server, 40)
        factories.age(busy.slot, 500)
        assert [got(servers).slot for _ in range(3)] == [shorter.slot, short.slot, long.slot]
        assert asked(servers) is None

    def test_counts_for_less_the_longer_it_was_left(self) -> None:
        (server,) = servers = serving(2, parking="off")
        recent, left = idle(server, 300, 10), idle(server, 600, 580)  # 600 tokens × e^-0.97 are worth 228
        assert [got(servers).slot for _ in range(2)] == [left.slot, recent.slot]

    def test_with_a_file_is_cheaper_than_one_that_is_to_be_saved_first(self) -> None:
        (server,) = servers = serving(3)
        saved, unsaved, outgrown = idle(server, 900), idle(server, 90), idle(server, 90)
        parked(server, saved.holder, tokens=900)
        parked(server, outgrown.holder, seconds_ago=20)  # it was used since
        factories.age(outgrown.slot, 1)
        assert [got(servers).slot for _ in range(3)] == [saved.slot, outgrown.slot, unsaved.slot]

    def test_is_on_the_server_where_both_ways_back_cost_least_in_sum(self) -> None:
        slow, fast = servers = serving(1, 1)
        Server.objects.update(parking="off")
        Server.objects.filter(pk=slow.pk).update(read_ms=20.0)
        idle(slow, 50)
        idle(fast, 300)
        assert got(servers, tokens=500).server == fast.pk  # 1.5 + 2.5 s, not 1 + 10
        leases.forget([row.holder for row in Slot.objects.all() if row.holder])
        Slot.objects.update(condition="ready", stream_id=None)
        idle(slow, 50)
        idle(fast, 300)
        assert got(servers, tokens=10).server == slow.pk  # 1 + 0.2 s, not 1.5 + 0.05

    def test_is_nobody_who_is_spared_and_those_to_be_left_to_the_last_only_then(self) -> None:
        (server,) = servers = serving(3)
        spared, last, other = idle(server, 10), idle(server, 20), idle(server, 900)
        wishes: dict[str, Any] = {"spared": [spared.holder], "last": [last.holder]}
        helper = leases.acquire(other.holder, WORKER, [server.pk], work=Slot.Work.PREWARM)
        assert helper
        assert got(servers, **wishes).preempted == helper.stream_id
        assert got(servers, **wishes).slot == last.slot
        assert asked(servers, **wishes) is None
        assert got(servers).slot == spared.slot


class TestWhoWaits:
    """Turns that are queued, and who loses a slot to them."""

    @pytest.fixture
    def server(self) -> Server:
        return factories.server(slots=2)

    def kept(self, server: Server, *names: str) -> list[Conversation]:
        """A conversation of each with an idle slot."""
        made = [factories.conversation(factories.person(name)) for name in names]
        for where in made:
            factories.idle(server, where.pk)
        return made

    def claimed(self, *servers: Server) -> Claim | None:
        return turns.claim(WORKER, [server.pk for server in servers])

    def test_whoever_waits_for_a_turn_keeps_a_slot_and_goes_on_with_it_though_another_is_first(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(queue, "SPARING_SECONDS", 60.0)
        first = factories.sent(factories.conversation(factories.person("charlie")))
        mine = self.kept(server, "alice", "bob")
        for where in mine:
            factories.sent(where)
        began = [self.claimed(server), self.claimed(server)]
        assert [claim.conversation for claim in began if claim] == [where.pk for where in mine]
        assert all(claim.grant.warm for claim in began if claim)
        assert self.claimed(server) is None
        assert began[0]
        leases.release(began[0].grant, 10, 1)
        assert (after := self.claimed(server))
        assert after.generation == first.generation.pk

    def test_nobody_is_kept_out_by_those_who_always_go_on_at_once(self, server: Server) -> None:
        first = factories.sent(factories.conversation(factories.person("charlie")))
        for where in self.kept(server, "alice", "bob"):
            factories.sent(where)
        Generation.objects.filter(pk=first.generation.pk).update(queued_at=factories.ago(SPARING_SECONDS + 1))
        assert (claim := self.claimed(server))
        assert claim.generation == first.generation.pk

    def test_who_may_not_begin_yet_is_the_last_to_lose_a_slot(self, settings: Settings) -> None:
        settings.QUEUE_RUNNING_PER_PERSON = 1
        server = factories.server(slots=3)
        factories.sent(factories.conversation(factories.person("alice")))
        assert self.claimed(server)
        (capped,) = self.kept(server, "alice")
        factories.sent(capped)
        factories.age(Slot.objects.get(holder=capped.pk).pk, 300)
        self.kept(server, "bob")
        for name in ("charlie", "dora"):
            factories.sent(factories.conversation(factories.person(name)))
        assert self.claimed(server)
        assert Slot.objects.filter(holder=capped.pk).exists()
        assert self.claimed(server)
        assert not Slot.objects.filter(holder=capped.pk).exists()

    def test_a_slot_that_is_at_work_for_it_does_not_keep_a_turn_waiting(self, server: Server) -> None:
        (mine,) = self.kept(server, "alice")
        helper = leases.acquire(mine.pk, WORKER, [server.pk], work=Slot.Work.TITLE)
        factories.leased(server)
        factories.sent(factories.conversation(factories.person("bob")))
        factories.sent(mine)
        assert helper
        assert (claim := self.claimed(server))
        assert (claim.conversation, claim.grant.preempted) == (mine.pk, helper.stream_id)


class TestModels:
    """A conversation without a model of its own stays with the one that answered it."""

    @pytest.fixture
    def servers(self) -> tuple[Server, Server]:
        return factories.server(1, "http://large.test", "large"), factories.server(1, "http://small.test", "small")

    @pytest.fixture
    def where(self, servers: tuple[Server, Server]) -> Conversation:
        """One that `small` has answered, and whose slot another has by now."""
        made = factories.conversation()
        factories.sent(made)
        claim = turns.claim(WORKER, [servers[1].pk])
        assert claim
        done(claim)
        leases.leave([made.pk])
        leases.release(got((servers[1],)), 10, 1)
        return made

    def test_and_does_not_go_to_another_though_that_is_free(
        self, servers: tuple[Server, Server], where: Conversation
    ) -> None:
        assert Generation.objects.get().answered_by == "small"
        factories.sent(where)
        claim = turns.claim(WORKER, [server.pk for server in servers])
        assert claim
        assert claim.grant.server == servers[1].pk

    def test_nor_is_it_read_ahead_on_another(self, servers: tuple[Server, Server], where: Conversation) -> None:
        keys = [server.pk for server in servers]
        leases.leave([row.holder for row in Slot.objects.all() if row.holder])
        Slot.objects.filter(server=servers[1]).update(since=Now())
        assert (grant := ahead.acquire(WORKER, keys, where.owner_id, where.pk)) is not None
        assert grant.server == servers[1].pk

    def test_nor_while_it_may_be_back_in_a_moment(self, servers: tuple[Server, Server], where: Conversation) -> None:
        turn = factories.sent(where)
        factories.sent(factories.conversation(factories.person("bob")))
        reachable = [servers[0].pk]
        other = turns.claim(WORKER, reachable)
        assert other, "nobody else waits for that"
        assert other.generation != turn.generation.pk
        done(other)
        assert turns.claim(WORKER, reachable) is None
        Generation.objects.filter(pk=turn.generation.pk).update(queued_at=factories.ago(FAITHFUL_SECONDS + 1))
        assert (claim := turns.claim(WORKER, reachable))
        assert claim.generation == turn.generation.pk

    def test_nor_when_its_server_has_just_failed_it(self, servers: tuple[Server, Server], where: Conversation) -> None:
        turn = factories.sent(where)
        claim = turns.claim(WORKER, [servers[1].pk])
        assert claim
        Generation.objects.filter(pk=claim.generation).update(queued_at=factories.ago(FAITHFUL_SECONDS + 1))
        turns.requeue(claim, refund=True)
        assert turns.claim(WORKER, [servers[0].pk]) is None
        PastLease.objects.update(ended_at=factories.ago(FAITHFUL_SECONDS + 1), began_at=factories.ago(1000))
        assert turns.claim(WORKER, [servers[0].pk])
        assert Generation.objects.get(pk=turn.generation.pk).answered_by == "large"

    def test_unless_nobody_has_it_any_more(self, servers: tuple[Server, Server], where: Conversation) -> None:
        factories.sent(where)
        Server.objects.filter(pk=servers[1].pk).update(model="newer")
        assert turns.claim(WORKER, [servers[0].pk])

    def test_one_whose_model_was_changed_leaves_its_slot(
        self, servers: tuple[Server, Server], where: Conversation
    ) -> None:
        mine = factories.idle(servers[1], where.pk)
        Conversation.objects.update(model="large")
        factories.sent(where)
        claim = turns.claim(WORKER, [server.pk for server in servers])
        assert claim
        assert (claim.grant.server, claim.grant.slot == mine.slot) == (servers[0].pk, False)


def done(claim: Claim) -> None:
    turns.finish(claim, turns.Ending(Generation.Status.DONE, "stop"))
    leases.release(claim.grant, 10, 1)


@pytest.mark.django_db(transaction=True)
class TestWithServers:
    def test_of_six_on_four_slots_only_those_are_read_again_who_lost_one_and_the_long_ones_lose_none(
        self, start_worker: StartProcess
    ) -> None:
        with FakeLlama(slots=4, prefill_rate=4000) as server:
            start_worker(LLAMA_SERVERS=server.url)
            chats = [factories.conversation() for _ in range(6)]
            sizes = [160, 10, 10, 160, 10, 10]
            for chat, size in zip(chats, sizes, strict=True):
                answered(chat, f"{'word ' * size} [[tokens=3]]")
            for _ in range(2):
                for chat, size in zip(chats, sizes, strict=True):
                    lost = not Slot.objects.filter(holder=chat.pk).exists()
                    view = answered(chat, "And then? [[tokens=3]]")
                    assert figure(view, "replay_cause") == ("evicted" if lost else None)
                    assert not (lost and size == 160)
                    assert lost or figure(view, "prompt_n") < 40
        ended = PastLease.objects.filter(ended_by="evicted")
        assert ended.count() >= 6
        assert set(ended.values_list("phase", flat=True)) == {"idle"}
        assert Server.objects.get().read_ms == pytest.approx(0.25, rel=0.8)

    def test_on_two_servers_turns_go_where_the_lease_is_and_a_chat_that_moves_stays(
        self, start_worker: StartProcess
    ) -> None:
        with FakeLlama(slots=2, prefill_rate=4000) as one, FakeLlama(slots=2, prefill_rate=4000) as other:
            start_worker(LLAMA_SERVERS=f"{one.url},{other.url}")
            eventually(lambda: Server.objects.filter(state="ready").count() == 2, 30)
            chats = [factories.conversation() for _ in range(6)]
            for chat in chats:
                answered(chat, "Hello [[tokens=3]]")
            assert [server.journal.requests and len(server.journal.requests) for server in (one, other)] == [3, 3]
            where = {chat.pk: Slot.objects.get(holder=chat.pk).server_id for chat in chats[2:]}
            assert sorted(where.values()) == sorted(2 * list(Server.objects.values_list("pk", flat=True)))
            for chat in chats[2:]:
                assert figure(answered(chat, "And then? [[tokens=3]]"), "replay_cause") is None
                assert Slot.objects.get(holder=chat.pk).server_id == where[chat.pk]
            free = where[chats[2].pk]
            leases.leave([chat.pk for chat in chats[2:] if where[chat.pk] == free])
            causes = [figure(answered(chats[0], "Back? [[tokens=3]]"), "replay_cause") for _ in range(2)]
            assert causes == ["evicted", None]
            assert Slot.objects.get(holder=chats[0].pk).server_id == free
