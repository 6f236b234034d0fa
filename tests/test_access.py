"""One test walks every route and every frame as another person and as nobody: neither learns that a thing exists."""

import json
import uuid
from collections.abc import Iterator

import pytest
from django.urls import URLPattern, URLResolver, get_resolver
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from conversations import incoming
from conversations.claims import Claim
from conversations.models import Conversation, Generation, Message, Preset
from tests import factories, worker
from tests.web import Person, Tab

pytestmark = pytest.mark.django_db(transaction=True)

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
# What anybody may see, or is about the session of whoever asks.
FOR_ANYBODY = ("healthz", "readyz", "_allauth/", "^_allauth/", "api/schema/", "api/docs/", "ws/")
# What is for browsers answers with pages, not with `{code, detail}`: each kind has its own test of who may see it.
PAGES = ("account/", "admin/", "c/", "enter/", "invite/", "join/", "reset/", "sign-in/", "sign-out/", "sign-up/")


ENDLESS = ("GET", "api/v1/events/")  # tests/test_socketless.py has it


def routes(resolver: URLResolver, prefix: str = "") -> Iterator[str]:
    for pattern in resolver.url_patterns:
        if isinstance(pattern, URLResolver):
            yield from routes(pattern, prefix + str(pattern.pattern))
        else:
            assert isinstance(pattern, URLPattern)
            yield prefix + str(pattern.pattern)


def private_routes() -> list[str]:
    found = routes(get_resolver())
    others = (*FOR_ANYBODY, *PAGES)
    return [route for route in found if route and not route.startswith(others)]


def state() -> list[object]:
    """All that a stranger could have changed."""
    return [list(model.objects.order_by("pk").values()) for model in (Conversation, Message, Generation, Preset)]


@pytest.fixture
def claim() -> Claim:
    """Alice's answer, being written."""
    alice = factories.person("alice")
    Preset.objects.create(owner=alice, name="Secret", system_prompt="Secret")
    claim = factories.running(factories.conversation(alice, title="Secret", system_prompt="Secret"))
    factories.wrote(claim, "Secret answer")
    return claim


def bodies(claim: Claim) -> list[object]:
    client_id = str(Generation.objects.get(pk=claim.generation).client_id)
    return [
        None,
        {"title": "Mine"},
        {"preset": str(Preset.objects.get().pk)},
        {"client_id": str(uuid.uuid4())},
        {"client_id": client_id},
        {"client_id": str(uuid.uuid4()), "text": "Hello"},
        {"client_id": client_id, "text": "How do steam engines work?", "parent": None},
        {"client_id": str(uuid.uuid4()), "text": "Hello", "parent": str(claim.message)},
    ]


def test_every_route_is_closed_to_others(alice: Person, bob: Person, claim: Claim) -> None:
    before, sent, preset = state(), bodies(claim), Preset.objects.get().pk
    walked = 0
    for route in private_routes():
        ids = {
            "conversations": claim.conversation, "generations": claim.generation, "messages": claim.message,
            "presets": preset,
        }  # fmt: skip
        kind = route.removeprefix("api/v1/").partition("/")[0]
        path, missing = (f"/{route.replace('<uuid:id_>', str(id_))}" for id_ in (ids.get(kind), uuid.uuid4()))
        assert "<" not in path, f"how is {route} called?"
        for method in METHODS:
            if (method, route) == ENDLESS:
                continue
            nobody = alice.web.nobody().request(method, path, json=sent[-1])
            assert (nobody.status_code, nobody.json()["code"]) == (401, "not_signed_in"), (method, path)
            for body in sent:
                foreign = bob.request(method, path, json=body)
                assert "Secret" not in foreign.text
                assert str(claim.conversation) not in foreign.text
                if "<uuid" in route:
                    assert foreign.status_code in (404, 405), (method, path, body)
                    nothing = bob.request(method, missing, json=body)
                    assert (foreign.status_code, foreign.json()) == (nothing.status_code, nothing.json())
                walked += 1
                if foreign.status_code == 405 or method == "GET":
                    break  # no body makes a difference
    assert walked >= 150
    Preset.objects.filter(owner=bob.pk).delete()
    Conversation.objects.filter(owner=bob.pk).delete()
    assert state() == before
    assert Generation.objects.get(pk=claim.generation).stop_asked_at is None


def test_a_list_has_ones_own_only(bob: Person, claim: Claim) -> None:
    mine = bob.post("conversations/", {}).json()
    assert bob.get("conversations/").json() == {"results": [mine], "next": None}


def frames(claim: Claim, conversation: str, generation: str) -> dict[str, dict[str, object]]:
    client_id = str(Generation.objects.get(pk=claim.generation).client_id)
    return {
        "subscribe": {"conversation": conversation},
        "unsubscribe": {"conversation": conversation},
        "send": {"conversation": conversation, "client_id": client_id, "text": "Mine", "parent": str(claim.message)},
        "cancel": {"generation": generation},
        "typing": {"conversation": conversation},
        "ping": {"known": {generation: 0}},
    }


def test_every_frame_is_closed_to_others(bob: Person, claim: Claim) -> None:
    before = state()
    theirs = frames(claim, str(claim.conversation), str(claim.generation))
    unknown = (str(uuid.uuid4()), str(uuid.uuid4()))
    nothing = frames(claim, *unknown)
    assert set(theirs) | {"auth"} == set(incoming.SHAPES), "a new frame must be walked too"
    with bob.tab() as tab:
        for type_, fields in theirs.items():
            answers = []
            for ids, one in (((str(claim.conversation), str(claim.generation)), fields), (unknown, nothing[type_])):
                tab.send(type_, **one)
                tab.send("ping", id="done")
                said = []
                while (frame := tab.next()) != {"type": "pong", "gone": [], "re": "done"}:
                    text = json.dumps(frame)
                    assert "Secret" not in text
                    said.append(text.replace(ids[0], "CONVERSATION").replace(ids[1], "GENERATION"))
                answers.append(said)
            assert answers[0] == answers[1], f"{type_} tells that it exists"
        worker.publish(claim, "and more")
        assert tab.quiet(1.5)
    assert bob.get("conversations/").json()["results"] == []
    Generation.objects.filter(owner=bob.pk).delete()
    assert state() == before


def test_every_frame_is_closed_to_nobody(bob: Person, claim: Claim) -> None:
    before = state()
    for type_, fields in frames(claim, str(claim.conversation), str(claim.generation)).items():
        with connect(bob.web.socket_address) as connection:
            tab = Tab(connection)
            tab.send(type_, **fields)
            assert tab.error()["code"] == "not_signed_in"
            with pytest.raises(ConnectionClosed):
                tab.next()
    assert state() == before


def test_a_parent_of_another_person_is_as_unknown_as_any(bob: Person, claim: Claim) -> None:
    mine = factories.conversation(factories.person("bob"))
    answers = [bob.say(mine, parent=str(parent)) for parent in (claim.message, uuid.uuid4())]
    assert [answer.status_code for answer in answers] == [400, 400]
    assert answers[0].json() == answers[1].json()
