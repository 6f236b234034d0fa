"""A server's slots are looked at while a lease is being had; what was seen counts only where it is certain."""

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from conversations.claims import Claim
from conversations.worker.verifying import Cache
from slots import client, looks, servers
from slots.looks import Looks
from slots.models import Server
from tests import factories
from tests.fake_llama import FakeLlama
from tests.llama_client import user

pytestmark = pytest.mark.django_db


@pytest.fixture
def llama() -> Iterator[FakeLlama]:
    with FakeLlama(slots=2) as running:
        yield running


def back_in_its_slot(llama: FakeLlama) -> tuple[Server, Claim]:
    """Somebody said something there before, and says more now."""
    server = factories.server(url=llama.url)
    ask(server, 0)
    shown = servers.client_of(server).slots()[0]
    claim = factories.running(on=server)
    grant = replace(claim.grant, id_slot=0, warm=True, kv_tokens=shown.tokens, kv_task=shown.task)
    return server, replace(claim, grant=grant)


def ask(server: Server, id_slot: int) -> None:
    body = {"messages": [user("Hello")], "stream": True, "max_tokens": 2, "id_slot": id_slot}
    with servers.client_of(server).post(body, uuid.uuid4()) as stream:
        list(stream.events())
    servers.wait_until_quiet(servers.client_of(server), id_slot)


def asked_for_slots(llama: FakeLlama) -> int:
    return sum(call.startswith("GET /slots") for call in llama.journal.calls)


def test_what_was_seen_ahead_is_not_asked_for_again(llama: FakeLlama) -> None:
    server, claim = back_in_its_slot(llama)
    ahead = Looks()
    ahead.begin([server])
    assert ahead.take(server.pk), "it is there"
    ahead.begin([server])
    before = asked_for_slots(llama)
    assert Cache(claim, server, ahead).before(servers.client_of(server))
    assert asked_for_slots(llama) <= before + 1, "the look that was begun is the only one"


def _used_by_a_stranger(server: Server, claim: Claim) -> Claim:
    ask(server, 0)
    return claim


def _leased_meanwhile(server: Server, claim: Claim) -> Claim:
    """By a title of its own, of which the lease tells, and the look ahead does not yet."""
    return replace(claim, grant=replace(claim.grant, kv_tokens=(claim.grant.kv_tokens or 0) + 9))


def _restored_without_a_request(server: Server, claim: Claim) -> Claim:
    return replace(claim, grant=replace(claim.grant, kv_task=None))


@pytest.mark.parametrize("change", [_used_by_a_stranger, _leased_meanwhile, _restored_without_a_request])
def test_a_slot_that_does_not_show_what_was_recorded_is_looked_at_now(
    llama: FakeLlama, change: Callable[[Server, Claim], Claim]
) -> None:
    server, claim = back_in_its_slot(llama)
    claim = change(server, claim)
    ahead = Looks()
    ahead.begin([server])
    seen = ahead._begun[server.pk][1].result()
    assert seen
    before = asked_for_slots(llama)
    Cache(claim, server, ahead).before(servers.client_of(server))
    assert asked_for_slots(llama) == before + 1


def test_a_look_counts_once_and_not_for_long(llama: FakeLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    server = factories.server(url=llama.url)
    ahead = Looks()
    assert ahead.take(server.pk) == ()
    ahead.begin([server])
    assert ahead.take(server.pk)
    assert ahead.take(server.pk) == ()
    monkeypatch.setattr(looks, "FRESH_SECONDS", -1.0)
    ahead.begin([server])
    assert ahead.take(server.pk) == ()


def test_nobody_is_woken_and_not_everybody_asked(llama: FakeLlama) -> None:
    server = factories.server(url=llama.url)
    before = asked_for_slots(llama)
    ahead = Looks()
    ahead.begin([Server(pk=server.pk, url=server.url, asleep=True)])
    ahead.begin([Server(pk=number, url=server.url) for number in range(looks.MOST_SERVERS + 1)])
    assert ahead.take(server.pk) == ()
    assert asked_for_slots(llama) == before


def test_a_server_that_does_not_answer_was_not_seen(llama: FakeLlama) -> None:
    gone = Server(pk=1, url="http://127.0.0.1:9")
    ahead = Looks()
    ahead.begin([gone])
    assert ahead.take(gone.pk) == ()


def test_one_that_hangs_is_not_waited_for(llama: FakeLlama) -> None:
    server = factories.server(url=llama.url)
    llama.set(slots_fault="silent")
    ahead = Looks()
    began = time.monotonic()
    ahead.begin([server])
    assert ahead.take(server.pk) == ()
    assert time.monotonic() < began + client.ANSWER_SECONDS / 2
