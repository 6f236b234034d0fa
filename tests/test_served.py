"""What people are told of the models: names, places, how busy, and why one does not answer."""

import uuid

import pytest
from pytest_django import DjangoAssertNumQueries

from conversations.api.serializers import ModelOutput
from conversations.served import Served, served
from slots import leases, servers
from slots.client import LlamaServer
from slots.models import Server, Slot
from tests import factories
from tests.fake_llama import FakeLlama
from tests.llama import real_llama_server
from tests.test_api_conversations import refused
from tests.web import Person

pytestmark = pytest.mark.django_db(transaction=True)


def only() -> Served:
    (found,) = served()
    return found


def test_places_count_the_slots_of_all_servers_of_a_model_and_a_warm_one_is_free() -> None:
    first, second = factories.server(slots=2), factories.server(slots=3, url="http://other.test:8080")
    factories.leased(first)
    factories.idle(second)
    found = only()
    assert (found.name, found.places, found.busy, found.free) == ("smollm2", 5, 1, 4)
    assert (found.usable, found.reason, found.demo) == (True, None, False)


def test_a_slot_that_is_still_being_stopped_is_busy_and_one_that_is_gone_is_no_place() -> None:
    server = factories.server(slots=3)
    grant = factories.leased(server)
    leases.revoke(grant.slot, grant.fence)
    Slot.objects.filter(id_slot=2).update(condition=Slot.Condition.GONE)
    assert (only().places, only().busy) == (2, 1)


def test_those_who_wait_are_counted_for_their_model_and_for_any() -> None:
    factories.server(model="large")
    factories.server(model="small", url="http://other.test:8080")
    for model in ("large", "large", "small", ""):
        factories.sent(factories.conversation(model=model))
    assert {one.name: one.waiting for one in served()} == {"large": 3, "small": 2}


def test_the_context_is_that_of_the_smallest_usable_slot() -> None:
    factories.server()
    other = factories.server(url="http://other.test:8080")
    Server.objects.filter(pk=other.pk).update(n_ctx=1024)
    assert (only().context, only().words) == (1024, 700)
    Server.objects.filter(pk=other.pk).update(trouble="It does not answer.")
    assert (only().context, only().words) == (2048, 1500)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"trouble": "It does not answer."}, "It does not answer."),
        ({"state": "draining"}, "http://llama.test:8080 is being taken out of service."),
        ({"state": "unknown"}, "http://llama.test:8080 has not been reached yet."),
    ],
)
def test_a_model_that_cannot_answer_stays_in_the_list_with_its_reason(change: dict[str, str], reason: str) -> None:
    Server.objects.filter(pk=factories.server().pk).update(**change)
    assert (only().usable, only().reason, only().places, only().free) == (False, reason, 0, 0)
    assert servers.why_none() == reason


def test_what_is_no_longer_used_or_was_never_reached_is_not_in_the_list() -> None:
    Server.objects.filter(pk=factories.server().pk).update(state="retired")
    Server.objects.create(url="http://never.test:8080")
    assert served() == []


@pytest.mark.parametrize(
    ("alias", "path", "name"),
    [
        ("", "/home/alice/models/gemma.gguf", "gemma.gguf"),
        ("/home/alice/models/gemma.gguf", "/home/alice/models/gemma.gguf", "gemma.gguf"),
        ("", "C:\\models\\gemma.gguf", "gemma.gguf"),
        ("google/gemma", "/home/alice/models/gemma.gguf", "google/gemma"),
    ],
)
def test_a_model_is_called_by_its_alias_or_its_file_and_nobody_is_told_where_that_lies(
    alias: str, path: str, name: str
) -> None:
    with FakeLlama(alias=alias, model_path=path) as server:
        assert LlamaServer(server.url).props().model == name


@pytest.mark.llama
def test_the_bundled_model_is_known_as_the_demo() -> None:
    with real_llama_server(slots=1, alias=None, api_key=None) as server:
        name = LlamaServer(server.url).props().model
    factories.server(model=name)
    assert (only().demo, only().name) == (True, "SmolLM2-135M-Instruct.Q4_1.gguf")


def test_two_queries_tell_it_of_any_number_of_servers(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    for number in range(5):
        factories.server(url=f"http://{number}.test:8080", model=f"model {number % 2}")
    factories.sent()
    with django_assert_num_queries(2):
        assert len(served()) == 2


def test_the_api_lists_what_is_served(alice: Person) -> None:
    assert alice.get("models/").json() == []
    factories.running(on=factories.server(slots=2))
    factories.sent(factories.conversation())
    (found,) = alice.get("models/").json()
    assert found == {
        "id": "smollm2", "n_ctx": 2048, "places": 2, "busy": 1, "waiting": 1, "usable": True, "reason": None,
        "thinking": [], "demo": False,
    }  # fmt: skip
    assert set(found) == set(ModelOutput().fields)
    assert alice.post("conversations/", {"model": found["id"]}).status_code == 201
    refused(alice.web.nobody().get("models/"), 401, "not_signed_in")


def test_a_conversation_cannot_ask_for_a_model_that_is_not_in_the_list(alice: Person) -> None:
    factories.server()
    refused(alice.post("conversations/", {"model": str(uuid.uuid4())}), 400, "invalid")
