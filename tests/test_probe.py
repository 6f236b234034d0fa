"""What a server is good for is found by a few harmless requests, once per process, and by one worker."""

import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now

from slots import grades, leases, orders, parked, probe, probing, servers
from slots.models import PastLease, Server, Slot
from slots.watch import Watch
from tests import factories, llama_client
from tests.concurrently import at_once
from tests.eventually import eventually
from tests.fake_llama import FakeLlama
from tests.grading import met, tried
from tests.llama import STRICT_FLAGS, real_llama_server

pytestmark = pytest.mark.django_db(transaction=True)

DEFAULTS = {"cache_ram": True, "kv_unified": True}


@pytest.mark.parametrize(
    ("options", "behaviour", "grade", "costs", "in_ram"),
    [
        ({"park": True}, {}, "full", grades.NOTHING, False),
        ({"park": True, "slots": 1}, {}, "full", grades.NOTHING, False),
        ({}, {}, "no_parking", grades.NO_FILES, False),
        ({"park": True}, {"restore_is_empty": True}, "no_parking", grades.USELESS_FILES, False),
        (DEFAULTS, {}, "one_at_a_time", grades.RAM_CACHE, True),
        ({"cache_ram": True}, {}, "one_at_a_time", grades.RAM_CACHE, True),
        ({"cache_ram": True, "slots": 1}, {}, "one_at_a_time", grades.RAM_CACHE, True),
        ({}, {"streams_route": False}, "no_parking", grades.NO_FILES, False),
        ({}, {"tells_cache": False}, "one_at_a_time", grades.UNTOLD, False),
        ({}, {"embeddings": True}, "unusable", "embedding model", False),
    ],
    ids=[
        "strict", "one slot", "no files", "useless files", "defaults", "-np", "one slot, defaults", "no streams", "old",
        "embedding",
    ],
)  # fmt: skip
def test_a_server_gets_the_grade_it_deserves(
    options: dict[str, Any], behaviour: dict[str, Any], grade: str, costs: str, in_ram: bool, tmp_path: Path
) -> None:
    if options.pop("park", False):
        options = options | {"slot_save_path": tmp_path}
    with FakeLlama(**options) as fake:
        fake.set(**behaviour)
        server = tried(fake.url)
    assert (server.grade, server.parks_in_ram) == (grade, in_ram)
    assert costs in server.costs
    assert bool(server.cure) == (grade != "full")
    assert server.state == ("unusable" if grade == "unusable" else "ready")


def test_every_canary_names_its_slot_has_its_own_stream_and_waits_for_the_one_before(fake_llama: FakeLlama) -> None:
    tried(fake_llama.url)
    canaries = fake_llama.journal.raw
    assert {canary.id_slot for canary in canaries} == {0, 1}
    assert len({canary.stream_id for canary in canaries}) == len(canaries)
    assert all(isinstance(canary.id_slot, int) and canary.outcome == "length" for canary in canaries)
    ends = [canary.ended for canary in canaries]
    assert all(end and later.started and end <= later.started for end, later in zip(ends, canaries[1:], strict=False))
    assert not fake_llama.requests


def test_a_probe_reads_few_tokens(tmp_path: Path) -> None:
    with FakeLlama(slot_save_path=tmp_path) as fake:
        tried(fake.url)
        assert sum(canary.prompt_n - canary.cache_n for canary in fake.journal.raw) < 45
        *canaries, answer = fake.journal.raw
        assert sum(canary.predicted_n for canary in canaries) == len(canaries)
        assert answer.predicted_n == probe.ANSWER_TOKENS


def test_one_file_is_written_whatever_the_number_of_probes(tmp_path: Path) -> None:
    with FakeLlama(slot_save_path=tmp_path) as fake:
        server = tried(fake.url)
        orders.probe_again(server)
        assert tried(fake.url).grade == "full"
    (written,) = tmp_path.iterdir()
    assert written.name == f"{parked.installation()}-{server.pk}-probe"


def test_a_process_is_probed_once_and_the_next_one_again(fake_llama: FakeLlama) -> None:
    tried(fake_llama.url)
    sent = len(fake_llama.journal.raw)
    assert tried(fake_llama.url, times=3).grade == "no_parking"
    assert len(fake_llama.journal.raw) == sent
    fake_llama.options.cache_ram = True
    fake_llama.restart()
    assert tried(fake_llama.url).grade == "one_at_a_time"
    fake_llama.options.cache_ram = False
    fake_llama.restart()
    server = tried(fake_llama.url)
    assert (server.grade, server.parks_in_ram) == ("no_parking", False)
    assert not Slot.objects.exclude(condition="ready").exists()


def test_nobody_is_leased_a_slot_before_the_grade_is_known(fake_llama: FakeLlama) -> None:
    server = met(fake_llama.url)
    assert server.state == "probing"
    assert leases.acquire(uuid.uuid4(), factories.WORKER, [server.pk]) is None
    assert "tried out" in (servers.why_none() or "")
    assert not fake_llama.journal.raw


def test_of_many_workers_one_probes(fake_llama: FakeLlama) -> None:
    server = met(fake_llama.url)
    found = at_once(*[lambda: _run_in_thread(server.pk)] * 8)
    assert found.count(True) == 1
    assert len(fake_llama.journal.raw) == 5


def test_a_worker_that_dies_while_it_probes_leaves_the_server_to_the_next(fake_llama: FakeLlama) -> None:
    server = met(fake_llama.url)
    assert probing._claimed(server)
    assert not probing.run(server)
    Server.objects.update(probing_until=Now())
    assert probing.run(server)


def test_a_probe_that_lost_its_claim_sends_and_stores_nothing_more(fake_llama: FakeLlama) -> None:
    server = met(fake_llama.url)
    claim = probing._claimed(server)
    assert claim
    Server.objects.update(probe=None)
    with pytest.raises(probing.ClaimLost):
        probing._verdict(claim)
    assert not fake_llama.journal.raw
    assert not probing._stored(claim, grades.disturbed(servers.client_of(server).props()), 0.0)
    assert Server.objects.get().grade == ""


def test_what_was_found_while_a_slot_was_leased_counts_for_nothing(fake_llama: FakeLlama) -> None:
    server = met(fake_llama.url)
    claim = probing._claimed(server)
    assert claim
    verdict = probing._verdict(claim)
    Server.objects.update(state="ready", grade="full")
    factories.idle(server)
    Server.objects.update(state="probing", grade="")
    assert not probing._stored(claim, verdict, 0.0)
    assert Server.objects.get().state == "probing"


def test_on_a_server_with_an_answer_under_way_nothing_is_sent(fake_llama: FakeLlama) -> None:
    server = tried(fake_llama.url)
    sent = len(fake_llama.journal.raw)
    factories.leased(server)
    with pytest.raises(orders.Refused, match="drain it first"):
        orders.probe_again(server)
    Server.objects.update(state="probing", grade="")
    assert not probing.run(Server.objects.get())
    assert len(fake_llama.journal.raw) == sent


def test_probed_again_by_wish_it_gives_up_what_was_kept_warm(fake_llama: FakeLlama) -> None:
    server = tried(fake_llama.url)
    factories.idle(server)
    orders.probe_again(server)
    assert not Slot.objects.exclude(phase="free", kv_of=None).exists()
    assert PastLease.objects.latest("fence").ended_by == "evicted"
    assert tried(fake_llama.url).state == "ready"


def test_a_draining_server_stays_draining_and_is_probed_when_it_is_back(fake_llama: FakeLlama) -> None:
    server = tried(fake_llama.url)
    orders.drain(server)
    fake_llama.restart()
    assert tried(fake_llama.url).state == "draining"
    orders.serve(server)
    assert Server.objects.get().state == "probing"
    assert tried(fake_llama.url).state == "ready"


def test_drained_while_it_is_probed_it_keeps_its_grade_and_gives_no_lease(fake_llama: FakeLlama) -> None:
    server = met(fake_llama.url)
    claim = probing._claimed(server)
    assert claim
    orders.drain(server)
    assert probing._stored(claim, probing._verdict(claim), 0.0)
    server.refresh_from_db()
    assert (server.state, server.grade) == ("draining", "no_parking")
    orders.serve(server)
    assert Server.objects.get().state == "ready"


def _run_in_thread(server: int) -> bool:
    try:
        return probing.run(Server.objects.get(pk=server))
    finally:
        connection.close()


# Somebody else is there


def test_a_server_that_somebody_else_keeps_busy_waits_and_is_then_used_carefully() -> None:
    with FakeLlama(slots=2) as fake:
        fake.set(slots_fault="busy")
        server = tried(fake.url)
        assert (server.state, server.grade) == ("probing", "")
        assert "not ours" in (servers.why_none() or "")
        assert not fake.journal.raw
        server = tried(fake.url, times=3)
        assert (server.grade, server.costs) == ("one_at_a_time", grades.DISTURBED)
        fake.set(slots_fault=None)
        orders.probe_again(server)
        assert tried(fake.url).grade == "no_parking"


def test_a_request_of_somebody_else_between_two_canaries_is_noticed(fake_llama: FakeLlama) -> None:
    server = met(fake_llama.url)
    claim = probing._claimed(server)
    assert claim
    renew, plain = claim.renew, llama_client.Server(fake_llama.url)
    calls: list[int] = []

    def renewed() -> None:
        renew()
        calls.append(1)
        if len(calls) == 2:
            plain.chat("I am somebody else", id_slot=0)

    client = servers.client_of(server)
    with pytest.raises(probe.Disturbed):
        probe.Canaries(client, probe.plan(client.slots()), renewed, "x").run()


def test_a_probe_of_a_slow_server_keeps_no_other_from_being_used() -> None:
    with FakeLlama(prefill_rate=4) as slow, FakeLlama() as quick:
        for url in (slow.url, quick.url):
            Server.objects.create(url=url)
        watch = Watch()
        began = time.monotonic()
        watch.round()
        eventually(lambda: Server.objects.get(url=quick.url).state == "ready")
        assert Server.objects.get(url=slow.url).state == "probing"
        watch.round()
        assert time.monotonic() - began < 9  # the five canaries take the slow one more than that
        watch.stop()
        Server.objects.filter(url=slow.url).update(probe=None)
        eventually(lambda: not watch.trying)


# One at a time


def test_one_at_a_time_leases_slot_0_alone_and_never_a_second() -> None:
    with FakeLlama(**DEFAULTS) as fake:
        server = tried(fake.url)
        first = factories.leased(server)
        assert (first.id_slot, first.parks_in_ram, first.warm) == (0, True, False)
        assert leases.acquire(uuid.uuid4(), factories.WORKER, [server.pk]) is None
        leases.release(first, 10, 1)
        second = factories.leased(server)
        assert second.id_slot == 0
        assert Slot.objects.filter(condition="unused").count() == 3
        assert servers.models() == [server.model]


# On the real server


@pytest.mark.llama
@pytest.mark.parametrize(
    ("flags", "files", "grade", "in_ram"),
    [
        (STRICT_FLAGS, True, "full", False),
        (("-np", "-1", "-c", "2048"), False, "one_at_a_time", True),
    ],
    ids=["strict", "defaults"],
)
def test_the_real_server_is_graded_rightly_and_quickly(
    flags: tuple[str, ...], files: bool, grade: str, in_ram: bool, tmp_path: Path
) -> None:
    with real_llama_server(slots=2, flags=flags, slot_save_path=tmp_path if files else None) as real:
        server = met(real.url, api_key=real.api_key or "")
        began = time.monotonic()
        server = tried(real.url)
        print(f"\nprobe of {grade}: {time.monotonic() - began:.2f} s")  # noqa: T201
    assert (server.grade, server.parks_in_ram) == (grade, in_ram), server.costs
