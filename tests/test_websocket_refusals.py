"""What the websocket refuses: in a sentence, and the socket stays open unless nobody is signed in on it."""

import contextlib
import json
import socket
import time
import uuid
from collections.abc import Callable

import pytest
import requests
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from chatbackend.accounts.models import User
from conversations import consumer
from conversations.models import Generation
from tests import factories
from tests.eventually import eventually
from tests.web import Person, Tab, Web, session_of, sign_out

pytestmark = pytest.mark.django_db(transaction=True)

MISSING = "00000000-0000-7000-8000-000000000000"  # nobody has it


def closed(tab: Tab, timeout: float = 5) -> int:
    """The code with which the socket closes next."""
    with pytest.raises(ConnectionClosed) as caught:
        tab.next(timeout)
    assert caught.value.rcvd
    return caught.value.rcvd.code


@pytest.mark.parametrize(
    ("raw", "code", "words"),
    [
        ("", "malformed_json", "valid JSON"),
        ("{", "malformed_json", "valid JSON"),
        ("[" * 100_000, "malformed_json", "valid JSON"),
        ('{"type": NaN}', "malformed_json", "NaN"),
        ("[]", "malformed_json", "a list"),
        ("7", "malformed_json", "a number"),
        ("null", "malformed_json", "null"),
        (b"\x00\x01", "binary_frame", "text frames"),
        ("{}", "unknown_type", "auth, subscribe"),
        ('{"type": 5}', "unknown_type", "a string"),
        ('{"type": "typo"}', "unknown_type", "typo"),
        ('{"type": "\\ud800"}', "unknown_type", "ud800"),
        ('{"type": "__class__"}', "unknown_type", "auth, subscribe"),
        ('{"type": "subscribe"}', "invalid", "conversation"),
        ('{"type": "subscribe", "conversation": 5}', "invalid", "UUID"),
        ('{"type": "subscribe", "conversation": "x"}', "invalid", "UUID"),
        ('{"type": "cancel", "generation": null}', "invalid", "generation"),
        ('{"type": "ping", "known": []}', "invalid", "known"),
        ('{"type": "ping", "known": {"x": 1}}', "invalid", "known"),
        ('{"type": "ping", "known": {"' + MISSING + '": "1"}}', "invalid", "known"),
        ('{"type": "ping", "knwon": {}}', "invalid", "no such field"),
        ('{"type": "send", "text": "x"}', "invalid", "conversation"),
        ("x" * (1024 * 1024 + 1), "frame_too_large", "1,048,576"),
        ("x" * (3 * 1024 * 1024), "frame_too_large", "1,048,576"),
    ],
)
def test_a_bad_frame_is_answered_and_the_socket_stays_open(
    alice: Person, raw: str | bytes, code: str, words: str
) -> None:
    with alice.tab() as tab:
        tab.connection.send(raw)
        refused = tab.error()
        assert refused["code"] == code
        assert words in refused["detail"].encode("ascii", "backslashreplace").decode()
        assert tab.answers()


def test_bytes_that_are_no_utf8_are_answered_and_the_socket_stays_open(alice: Person) -> None:
    with alice.tab() as tab:
        tab.connection.send(b'{"type": "ping\xff"}', text=True)
        assert tab.error()["code"] == "malformed_utf8"
        assert tab.answers()


def test_a_frame_beyond_every_measure_closes_the_socket_with_its_reason(alice: Person) -> None:
    with alice.tab() as tab:
        tab.connection.send("x" * (5 * 1024 * 1024))
        assert closed(tab) == 1009


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"text": ""}, "text_empty"),
        ({"text": " \n\x00 "}, "text_empty"),
        ({"text": "x" * 200_001}, "text_too_long"),
        ({"text": 5}, "invalid"),
        ({"text": None}, "invalid"),
        ({"client_id": "x"}, "invalid"),
        ({"client_id": 12}, "invalid"),
        ({"parent": "x"}, "invalid"),
        ({"parent": MISSING}, "parent_unknown"),
        ({"conversation": MISSING}, "not_found"),
        ({"temperature": 1}, "invalid"),
        ({"id_slot": 0}, "invalid"),
    ],
)
def test_a_send_that_cannot_be_is_refused_with_its_client_id(
    alice: Person, fields: dict[str, object], code: str
) -> None:
    where = factories.conversation(factories.person("alice"))
    frame = {"conversation": str(where.pk), "client_id": str(uuid.uuid4()), "text": "Hello", "id": "f1", **fields}
    with alice.tab() as tab:
        tab.send("send", **frame)
        refused = tab.error()
        assert refused["code"] == code
        assert refused["re"] == "f1"
        assert refused["client_id"] == frame["client_id"]
        assert tab.answers()
    assert not Generation.objects.exists()


def test_a_client_id_of_another_message_is_refused(alice: Person) -> None:
    where = factories.conversation(factories.person("alice"))
    used = factories.sent(where).generation.client_id
    with alice.tab() as tab:
        tab.send("send", conversation=str(where.pk), client_id=str(used), text="Something else")
        assert tab.error()["code"] == "client_id_reused"


def test_a_text_with_what_postgres_cannot_store_is_cleaned(alice: Person) -> None:
    where = factories.conversation(factories.person("alice"))
    with alice.tab() as tab:
        tab.say(where, "a\x00b \ud800 c")
        assert tab.expect("message.created")["messages"][0]["text"] == "ab � c"


def test_too_many_subscriptions_are_refused(alice: Person) -> None:
    many = [factories.conversation(factories.person("alice")) for _ in range(consumer.MOST_SUBSCRIPTIONS + 1)]
    with alice.tab(*many[:-1]) as tab:
        tab.send("subscribe", conversation=str(many[-1].pk))
        refused = tab.error()
        assert (refused["code"], refused["retryable"]) == ("too_many", True)
        assert str(consumer.MOST_SUBSCRIPTIONS) in refused["detail"]
        tab.send("unsubscribe", conversation=str(many[0].pk))
        tab.send("subscribe", conversation=str(many[-1].pk))
        tab.expect("snapshot")


def test_a_flood_of_frames_is_refused_one_by_one_and_ends_there(alice: Person) -> None:
    with alice.tab() as tab:
        for number in range(200):
            tab.send("ping", id=number)
        got = [tab.next() for _ in range(200)]
        refused = [frame for frame in got if frame["type"] == "error"]
        assert {frame["code"] for frame in refused} == {"too_many"}
        assert 20 < len(refused) < 180
        assert [frame["re"] for frame in got] == list(range(200))
        eventually(tab.answers_once, 5, every=0.1)


# -- who is signed in


@pytest.mark.parametrize("type_", ["subscribe", "unsubscribe", "send", "cancel", "ping"])
def test_nobody_gets_anything_but_told_to_sign_in(web: Web, type_: str) -> None:
    factories.sent()
    with connect(web.socket_address) as connection:
        tab = Tab(connection)
        tab.send(type_)
        assert tab.error()["code"] == "not_signed_in"
        assert closed(tab) == consumer.UNAUTHENTICATED


@pytest.mark.parametrize("token", ["x" * 32, "short", "", "nul\0nul\0nul\0nul\0nul\0nul\0nul\0nul\0"])
def test_a_wrong_token_is_refused(web: Web, token: str) -> None:
    with connect(web.socket_address) as connection:
        tab = Tab(connection)
        tab.send("auth", token=token, id=1)
        refused = tab.error()
        assert (refused["code"], refused["re"]) == ("not_signed_in", 1)
        assert closed(tab) == consumer.UNAUTHENTICATED


def test_a_malformed_first_frame_leaves_time_to_sign_in(alice: Person) -> None:
    with connect(alice.web.socket_address) as connection:
        tab = Tab(connection)
        connection.send("{")
        tab.error()
        tab.send("auth", token=alice.token)
        assert tab.expect("ready")["person"] == {"id": alice.pk, "username": "alice"}


def test_who_does_not_sign_in_within_ten_seconds_is_let_go(web: Web) -> None:
    with connect(web.socket_address) as connection:
        tab = Tab(connection)
        began = time.monotonic()
        assert tab.error(timeout=15)["code"] == "not_signed_in"
        assert 9 < time.monotonic() - began < 13
        assert closed(tab) == consumer.UNAUTHENTICATED


def test_the_cookie_of_a_session_signs_in_by_itself(alice: Person) -> None:
    with connect(alice.web.socket_address, additional_headers={"Cookie": f"sessionid={alice.token}"}) as connection:
        tab = Tab(connection)
        assert tab.expect("ready")["person"]["username"] == "alice"
        assert tab.answers()


@pytest.mark.parametrize("cookie", ["gone" * 8, '"\\000\\000\\000\\000\\000\\000\\000\\000\\000"'])
def test_a_cookie_of_no_session_is_as_good_as_none(alice: Person, cookie: str) -> None:
    with connect(alice.web.socket_address, additional_headers={"Cookie": f"sessionid={cookie}"}) as connection:
        tab = Tab(connection)
        tab.send("auth", token=alice.token)
        assert tab.expect("ready")["person"]["username"] == "alice"


def test_a_socket_does_not_change_hands(alice: Person, bob: Person) -> None:
    with alice.tab() as tab:
        tab.send("auth", token=bob.token)
        assert tab.error()["code"] == "invalid"
        tab.send("auth", token=alice.token)
        assert tab.expect("ready")["person"]["username"] == "alice"


def end_session(person: Person) -> None:
    sign_out(person.token)


def deactivate(person: Person) -> None:
    User.objects.filter(pk=person.pk).update(is_active=False)


def change_password(person: Person) -> None:
    found = User.objects.get(pk=person.pk)
    found.set_password("another")
    found.save()


@pytest.mark.parametrize("end", [end_session, deactivate, change_password])
def test_when_the_session_ends_the_next_frame_closes_the_socket(alice: Person, end: Callable[[Person], None]) -> None:
    with alice.tab() as tab:
        other = Person(alice.web, alice.pk, session_of("alice"))
        end(alice)
        with contextlib.suppress(ConnectionClosed):  # some ends are told to the socket, which may hear of it first
            tab.send("ping")
        assert tab.error()["code"] == "not_signed_in"
        assert closed(tab) == consumer.UNAUTHENTICATED
        if end is end_session:
            with other.tab() as still:
                assert still.answers()


def test_signing_out_closes_a_socket_that_only_listens(alice: Person) -> None:
    other = Person(alice.web, alice.pk, session_of("alice"))
    with alice.tab() as tab, other.tab() as still:
        sign_out(alice.token)
        assert tab.error()["code"] == "not_signed_in"
        assert closed(tab) == consumer.UNAUTHENTICATED
        assert still.quiet(), "a person's other sessions are not told"
        assert still.answers()


# -- pages of others


def refused(web: Web, **headers: str) -> InvalidStatus:
    with pytest.raises(InvalidStatus) as caught, connect(web.socket_address, additional_headers=headers):
        pass
    return caught.value


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:1", "https://127.0.0.1", "file://"]
)
def test_a_page_of_another_site_is_refused_with_the_reason(web: Web, origin: str) -> None:
    answer = refused(web, Origin=origin).response
    body = json.loads(answer.body or b"")
    assert (answer.status_code, body["code"]) == (403, "origin_refused")
    assert origin in body["detail"]


def test_an_own_page_may_open_a_socket(alice: Person) -> None:
    headers = {"Origin": alice.web.address, "Cookie": f"sessionid={alice.token}"}
    with connect(alice.web.socket_address, additional_headers=headers) as connection:
        assert Tab(connection).expect("ready")


def test_a_host_that_is_not_ours_is_refused(web: Web) -> None:
    host = "evil.example"
    with pytest.raises(InvalidStatus) as caught, connect(f"ws://{host}/ws/", sock=_socket(web)):
        pass
    assert b"ALLOWED_HOSTS" in (caught.value.response.body or b"")


def test_a_request_that_lost_its_upgrade_on_the_way_is_told_so(web: Web) -> None:
    answer = requests.get(f"{web.address}/ws/", timeout=5)
    assert (answer.status_code, answer.json()["code"]) == (426, "upgrade_required")
    assert "Upgrade: websocket" in answer.json()["detail"]


def test_another_path_has_no_socket(web: Web) -> None:
    with pytest.raises(InvalidStatus) as caught, connect(web.socket_address + "other"):
        pass
    assert caught.value.response.status_code == 404


def _socket(web: Web) -> socket.socket:
    host, _, port = web.address.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)))
