"""What is not a usable llama-server is named, with what to do; what a grade costs is said everywhere alike."""

import pytest
from django.utils import timezone

from slots import advice, capacity, grades, servers
from slots.client import LlamaServer, Peek, Props
from slots.grades import Findings, Grade, Parking
from slots.models import Server
from tests import factories
from tests.administrators import administrator, page
from tests.balancer import balanced
from tests.fake_llama import FakeLlama
from tests.grading import met, tried
from tests.strangers import STRANGERS, stranger
from tests.web import Person

pytestmark = pytest.mark.django_db(transaction=True)

PROPS = Props("<boot>", "model", 4, 8192, "/models/my model.gguf")


@pytest.mark.parametrize("name", STRANGERS)
def test_a_stranger_is_recognised_by_name_and_the_cure_is_said(name: str) -> None:
    with stranger(name) as url:
        server = met(url)
    assert server.trouble == f"{url} answers as {name}, not as a llama-server."
    assert server.trouble_cure
    assert servers.why_none() == server.trouble


def test_a_stranger_is_not_asked_who_it_is_with_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    peek = LlamaServer.peek

    def peeked(client: LlamaServer, path: str) -> Peek | None:
        asked.append(path)
        return peek(client, path)

    monkeypatch.setattr(LlamaServer, "peek", peeked)
    with stranger("vLLM") as url:
        for _ in range(5):
            met(url)
    assert len(asked) == len(set(asked))


@pytest.mark.parametrize(
    ("behaviour", "sentence", "cure"),
    [
        ({"loading": True}, "still loading", "Wait"),
        ({"role": "router"}, "router mode", "one llama-server per model"),
        ({"slots_fault": "off"}, "does not show its slots", "without --no-slots"),
        ({"slots_fault": "missing"}, "/slots lists", ""),
    ],
)
def test_a_llama_server_that_cannot_be_used_says_why_and_what_helps(
    behaviour: dict[str, object], sentence: str, cure: str, fake_llama: FakeLlama
) -> None:
    fake_llama.set(**behaviour)
    server = met(fake_llama.url)
    assert sentence in server.trouble
    assert cure in server.trouble_cure
    assert server.state == "unknown"
    fake_llama.set(loading=False, role=None, slots_fault=None)
    assert tried(fake_llama.url).trouble_cure == ""
    assert Server.objects.get().state == "ready"


@pytest.mark.parametrize("key", ["", "wrong"])
def test_a_key_that_is_missing_or_wrong_is_named(key: str) -> None:
    with FakeLlama(api_key="right") as fake:
        server = met(fake.url, api_key=key)
    assert "API key" in server.trouble
    assert "http://:KEY@host" in server.trouble_cure


def test_nothing_there_is_said_too() -> None:
    server = met("http://127.0.0.1:9")
    assert "does not answer" in server.trouble
    assert server.trouble_cure == "Start llama-server there, or correct the address."


def test_two_addresses_of_one_process_are_one_server(fake_llama: FakeLlama) -> None:
    tried(fake_llama.url)
    again = met(fake_llama.url.replace("127.0.0.1", "localhost"))
    assert (again.state, again.trouble, again.trouble_cure) == ("unknown", servers.TWICE, servers.NAME_IT_ONCE)


def test_several_processes_behind_one_address_are_never_used(fake_llama: FakeLlama) -> None:
    with FakeLlama() as other, balanced(fake_llama.port, other.port) as url:
        for _ in range(3):
            server = met(url)
            assert (server.trouble, server.state, server.boot) == (servers.SEVERAL, "unknown", None)
        assert "own address" in server.trouble_cure
        assert not fake_llama.journal.raw


def test_a_server_that_becomes_several_loses_its_leases(fake_llama: FakeLlama) -> None:
    server = tried(fake_llama.url)
    factories.idle(server)
    with FakeLlama() as other, balanced(other.port, fake_llama.port) as url:
        Server.objects.filter(pk=server.pk).update(url=url)
        for _ in range(2):
            servers.look(Server.objects.get(pk=server.pk))
    server.refresh_from_db()
    assert (server.trouble, server.state, server.grade) == (servers.SEVERAL, "unknown", "")
    assert not server.slots.exclude(phase="free").exists()


# Judging


@pytest.mark.parametrize(
    ("found", "grade", "flags"),
    [
        (Findings(parking=Parking.WORKS), Grade.FULL, ()),
        (Findings(parking=Parking.OFF), Grade.NO_PARKING, ("--slot-save-path", "-c 32768")),
        (Findings(parking=Parking.USELESS), Grade.NO_PARKING, ("--swa-full",)),
        (Findings(ram_cache=True), Grade.ONE_AT_A_TIME, ("--cache-ram 0", "-c 32768")),
        (Findings(ram_cache=True, loses=True), Grade.ONE_AT_A_TIME, ("--no-kv-unified", "-c 8192")),
        (Findings(loses=True), Grade.ONE_AT_A_TIME, ("--no-kv-unified", "-c 8192")),
    ],
)
def test_each_grade_below_full_names_its_cost_and_the_command_line(
    found: Findings, grade: Grade, flags: tuple[str, ...]
) -> None:
    verdict = grades.judge(found, PROPS)
    assert (verdict.grade, bool(verdict.costs)) == (grade, True)
    assert advice.is_command(verdict.cure) == (grade != Grade.FULL)
    assert all(flag in verdict.cure for flag in flags)
    if verdict.cure:
        assert verdict.cure.startswith("llama-server -m '/models/my model.gguf' -np 4 --no-kv-unified -c ")


def test_a_context_that_is_shared_is_divided_in_the_memory_it_has() -> None:
    told = grades.judge(Findings(ram_cache=True, loses=True), PROPS)
    assert "each of 4 slots will have 2,048 tokens" in told.costs
    assert "-np 4" in told.cure
    small = Props("<boot>", "model", 4, 4096, "m.gguf")
    assert "-np 2 --no-kv-unified -c 4096 " in grades.judge(Findings(loses=True), small).cure


@pytest.mark.parametrize(("context", "slots", "total"), [(8192, 4, 8192), (1000, 3, 1536), (1, 1, 256)])
def test_a_total_context_gives_each_slot_a_multiple_of_256(context: int, slots: int, total: int) -> None:
    assert advice.padded(context, slots) == total


def test_a_save_path_that_is_there_is_not_named_again() -> None:
    assert "--slot-save-path" not in grades.judge(Findings(ram_cache=True, parking=Parking.WORKS), PROPS).cure


# The same everywhere


def test_readiness_models_and_admin_agree_on_a_server_used_one_at_a_time(alice: Person) -> None:
    with FakeLlama(cache_ram=True, kv_unified=True) as fake:
        server = tried(fake.url)
    assert [(one.places, one.why_none) for one in capacity.capacities()] == [(1, None)]
    assert [(one["places"], one["usable"]) for one in alice.get("models/").json()] == [(1, True)]
    front = administrator().get("/admin/").content.decode()
    assert "Ready, one at a time" in front
    assert "RAM cache can put one conversation" in front
    html = administrator().get(page(Server, "change", server.pk)).content.decode()
    assert "One at a time" in html
    assert server.cure in html
    assert "data-copy" in html
    assert "Probe again" in html
    assert administrator().get("/admin/slots/slot/").content.decode().count("Unused") == 3


def test_readiness_models_and_admin_agree_on_a_server_that_is_unusable(alice: Person, fake_llama: FakeLlama) -> None:
    fake_llama.set(embeddings=True)
    server = tried(fake_llama.url)
    assert (server.state, server.grade) == ("unusable", "unusable")
    assert servers.why_none() == server.costs
    (model,) = alice.get("models/").json()
    assert (model["usable"], model["reason"], model["places"]) == (False, server.costs, 0)
    html = administrator().get(page(Server, "change", server.pk)).content.decode()
    assert server.costs in html
    assert server.cure in html
    assert grades.words(server, timezone.now()) == "unusable"
