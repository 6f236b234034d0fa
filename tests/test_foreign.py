"""Requests that are not ours are noticed, counted and named, and cost whoever waits nothing."""

from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now
from django.utils import timezone

from slots import foreign, grades, leases, servers
from slots.models import Server, Slot
from tests import factories, llama_client
from tests.answers import ended
from tests.eventually import eventually
from tests.fake_llama import FakeLlama
from tests.grading import met, tried
from tests.stack import StartProcess

pytestmark = pytest.mark.django_db(transaction=True)

LONG: dict[str, Any] = {"max_tokens": 500, "ignore_eos": True}


def slots_looks(fake: FakeLlama) -> int:
    return fake.journal.calls.count("GET /slots")


def test_three_within_ten_minutes_are_somebody_else_and_fewer_are_not(fake_llama: FakeLlama) -> None:
    server = tried(fake_llama.url)
    grant = factories.leased(server)
    for task in (100, 101):
        foreign.mismatch(grant, task)
    server.refresh_from_db()
    assert not grades.is_shared(server, timezone.now())
    foreign.mismatch(grant, 102)
    server.refresh_from_db()
    assert (server.foreign_count, grades.is_shared(server, timezone.now())) == (3, True)
    assert grades.words(server, timezone.now()) == "no parking, shared"
    verdict = grades.of(server, timezone.now())
    assert verdict
    assert grades.SHARED in verdict.costs
    assert not grades.is_shared(server, timezone.now() + timedelta(minutes=11))


def test_one_request_counts_once_whoever_notices_it(fake_llama: FakeLlama) -> None:
    grant = factories.leased(tried(fake_llama.url))
    for _ in range(3):
        foreign.mismatch(grant, 100)
    assert Server.objects.get().foreign_count == 1


def test_a_turn_notices_who_used_its_slot_and_names_it(fake_llama: FakeLlama, start_worker: StartProcess) -> None:
    worker = start_worker(LLAMA_SERVERS=fake_llama.url)
    chat = factories.conversation()
    ended(factories.sent(chat, "hello"))
    eventually(lambda: Slot.objects.filter(phase="idle").exists())
    used = Slot.objects.get(phase="idle")
    llama_client.Server(fake_llama.url).chat("I am somebody else", id_slot=used.id_slot)
    assert ended(factories.sent(chat, "and now?")).status == "done"
    assert Server.objects.get().foreign_count == 1
    assert "used by somebody else" in worker.output()


def test_a_slot_that_is_busy_without_a_lease_is_noticed_between_turns(fake_llama: FakeLlama) -> None:
    server = tried(fake_llama.url)
    grant = factories.leased(server)
    leases.release(grant, 10, 5)
    with llama_client.Server(fake_llama.url).open("I am somebody else", id_slot=3, **LONG):
        foreign.watch(server)
        assert Server.objects.get().foreign_count == 1


def test_an_answer_of_ours_is_not_taken_for_somebody_elses(fake_llama: FakeLlama) -> None:
    server = tried(fake_llama.url)
    grant = factories.leased(server)
    with llama_client.Server(fake_llama.url).open("I am ours", id_slot=grant.id_slot, **LONG):
        foreign.watch(server)
    assert (Server.objects.get().foreign_count, Server.objects.get().watched_at is None) == (0, False)


def test_slots_are_looked_at_rarely_and_only_while_a_server_is_in_use_and_awake(fake_llama: FakeLlama) -> None:
    server = tried(fake_llama.url)
    looks = slots_looks(fake_llama)
    foreign.watch(server)
    assert slots_looks(fake_llama) == looks
    leases.release(factories.leased(server), 10, 5)
    for _ in range(5):
        foreign.watch(server)
    assert slots_looks(fake_llama) == looks + 1
    Server.objects.update(watched_at=Now() - timedelta(seconds=foreign.EVERY_SECONDS + 1))
    foreign.watch(server)
    assert slots_looks(fake_llama) == looks + 2
    Server.objects.update(watched_at=None, asleep=True)
    foreign.watch(Server.objects.get())
    Server.objects.update(asleep=False)
    Slot.objects.update(used_at=Now() - timedelta(seconds=foreign.IN_USE_SECONDS + 1))
    foreign.watch(Server.objects.get())
    assert slots_looks(fake_llama) == looks + 2


def test_a_server_that_sleeps_keeps_its_leases_forgets_its_caches_and_is_not_woken(fake_llama: FakeLlama) -> None:
    server = tried(fake_llama.url)
    grant = factories.leased(server)
    leases.release(grant, 10, 5)
    looks = slots_looks(fake_llama)
    fake_llama.set(is_sleeping=True)
    for _ in range(3):
        server = met(fake_llama.url)
    assert (server.asleep, server.state, slots_looks(fake_llama)) == (True, "ready", looks)
    slot = Slot.objects.get(pk=grant.slot)
    assert (slot.holder, slot.kv_of) == (grant.holder, None)
    fake_llama.set(is_sleeping=False)
    assert not met(fake_llama.url).asleep


def test_where_no_marker_tells_a_restart_the_forgotten_slot_does(fake_llama: FakeLlama) -> None:
    fake_llama.set(marker=False)
    server = tried(fake_llama.url)
    assert server.grade == "no_parking"
    grant = factories.leased(server)
    fake_llama.options.cache_ram = True
    fake_llama.restart()
    assert met(fake_llama.url).state == "ready"
    assert foreign.mismatch(grant, servers.client_of(server).slots()[grant.id_slot].task) == "server_restarted"
    assert tried(fake_llama.url).grade == "one_at_a_time"
    assert Server.objects.get().foreign_count == 0
