"""Whatever goes wrong is said in one shape, with the right status."""

import json
import threading

import pytest
import requests
from django.db import DataError, IntegrityError
from django.test import Client

from chatbackend import failures
from tests import factories
from tests.eventually import eventually
from tests.outages import no_postgres
from tests.test_api_conversations import refused
from tests.web import Person, StartWeb, Web

pytestmark = pytest.mark.django_db(transaction=True)


def test_without_a_session_everything_is_401(web: Web) -> None:
    for person in (web.nobody(), Person(web, 0, "gone" * 8), Person(web, 0, "short"), Person(web, 0, "n" * 5000)):
        answer = person.get("conversations/")
        refused(answer, 401, "not_signed_in")
        assert answer.headers["WWW-Authenticate"] == "X-Session-Token"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("GET", "/api/v1/nothing/", 404, "not_found"),
        ("POST", "/api/v1/conversations", 404, "not_found"),
        ("PUT", "/api/v1/conversations/", 405, "method_not_allowed"),
        ("DELETE", "/api/v1/conversations/", 405, "method_not_allowed"),
        ("BREW", "/api/v1/conversations/", 405, "method_not_allowed"),
        ("GET", "/%00", 404, "not_found"),
        ("GET", "/%ff%fe", 404, "not_found"),
    ],
)
def test_addresses_and_methods_that_are_not_there(
    alice: Person, method: str, path: str, status: int, code: str
) -> None:
    refused(alice.request(method, path), status, code)


def test_a_forgotten_slash_is_pointed_out(alice: Person) -> None:
    said = refused(alice.request("POST", "/api/v1/conversations", json={}), 404, "not_found")
    assert "/api/v1/conversations/ (with a slash at the end)" in said["detail"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"{'a': 1}", b"\xff\xfe", b"[" * 100_000, b'{"a": NaN}', b"1" * 5000, b"nul"]
)
def test_a_body_that_is_no_json_is_refused(alice: Person, body: bytes) -> None:
    answer = alice.request(
        "POST", "/api/v1/conversations/", data=body or b" ", headers={"Content-Type": "application/json"}
    )
    refused(answer, 400, "malformed_utf8" if body == b"\xff\xfe" else "malformed_json")


def test_a_body_of_another_type_is_refused(alice: Person) -> None:
    for data, type_ in (("a=1", "application/x-www-form-urlencoded"), ("<a/>", "text/xml"), ("{}", "nonsense")):
        answer = alice.request("POST", "/api/v1/conversations/", data=data, headers={"Content-Type": type_})
        refused(answer, 415, "unsupported_media_type")


def test_what_cannot_be_answered_in_an_accepted_type_is_refused(alice: Person) -> None:
    refused(alice.get("conversations/", headers={"Accept": "text/html"}), 406, "not_acceptable")
    assert alice.get("conversations/", headers={"Accept": "text/html, */*;q=0.1"}).status_code == 200


def test_a_host_that_is_not_ours_is_refused(alice: Person) -> None:
    said = refused(alice.get("conversations/", headers={"Host": "evil.example"}), 400, "bad_request")
    assert "ALLOWED_HOSTS" in said["detail"]


@pytest.mark.parametrize("kind", [ZeroDivisionError, IntegrityError, DataError])
def test_a_bug_is_500_in_the_same_shape_and_in_the_log(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: type[Exception]
) -> None:
    def broken(*args: object) -> None:
        raise kind("the bug")

    monkeypatch.setattr("conversations.access.owned_by", broken)
    client.force_login(factories.person("alice"))
    client.raise_request_exception = False
    answer = client.get("/api/v1/conversations/")
    refused(answer, 500, "internal")
    assert b"the bug" not in answer.content
    assert f"{kind.__name__}: the bug" in caplog.text


def test_while_postgres_is_away_everything_says_so_and_then_works_again(start_web: StartWeb) -> None:
    web = start_web()
    alice = web.person("alice")
    where = factories.conversation(factories.person("alice"))
    with no_postgres():
        for answer in (
            alice.get("conversations/"),
            alice.say(where),
            alice.delete(f"conversations/{where.pk}/"),
        ):
            said = refused(answer, 503, "unavailable")
            assert said["retryable"] is True
        login = requests.post(
            f"{web.address}/_allauth/app/v1/auth/login", json={"username": "alice", "password": "x"}, timeout=20
        )
        refused(login, 503, "unavailable")
        assert requests.get(f"{web.address}/healthz", timeout=5).status_code == 200
    eventually(lambda: alice.get("conversations/").status_code == 200, 20)
    assert alice.say(where).status_code == 202


def test_thirty_requests_at_once_do_not_exhaust_the_pool(alice: Person) -> None:
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda: answers.append(alice.get("conversations/").status_code)) for _ in range(30)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * 30


def test_every_failure_has_the_same_three_fields() -> None:
    assert set(json.loads(failures.failure(418, "teapot", "I am a teapot.").content)) == {"code", "detail", "retryable"}
