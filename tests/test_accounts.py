"""Signing up, in and out at `/_allauth/`, over http at the real web process."""

import re
from datetime import timedelta
from typing import Any

import pytest
import requests
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db.models.functions import Now
from websockets.sync.client import connect

from chatbackend.accounts import invites
from chatbackend.accounts.models import Invite, User
from tests import factories
from tests.concurrently import at_once
from tests.eventually import eventually
from tests.web import Person, StartWeb, Tab, Web

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_limits_from_before")]

PASSWORD = "correct horse battery"


def auth(web: Web, step: str, method: str = "POST", client: str = "app", **more: Any) -> requests.Response:
    return requests.request(method, f"{web.address}/_allauth/{client}/v1/auth/{step}", timeout=20, **more)


def sign_up(web: Web, name: str = "alice", **more: Any) -> requests.Response:
    return auth(web, "signup", json={"username": name, "password": PASSWORD, **more})


def sign_in(web: Web, name: str = "alice", password: str = PASSWORD, **more: Any) -> requests.Response:
    return auth(web, "login", json={"username": name, "password": password}, **more)


def token_of(answer: requests.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["meta"]["session_token"])


def works(web: Web, token: str) -> bool:
    return Person(web, 0, token).get("conversations/").status_code == 200


def test_a_name_and_a_password_are_enough_to_join(web: Web) -> None:
    assert works(web, token_of(sign_up(web)))
    assert works(web, token_of(sign_in(web)))


def test_an_address_is_optional_and_nobody_elses(web: Web) -> None:
    token_of(sign_up(web, "alice", email="alice@example.org"))
    taken = sign_up(web, "bob", email="alice@example.org")
    assert (taken.status_code, taken.json()["code"]) == (400, "email_taken")
    assert User.objects.count() == 1


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"username": "", "password": PASSWORD}, "username"),
        ({"username": "a b", "password": PASSWORD}, "username"),
        ({"username": "x" * 151, "password": PASSWORD}, "username"),
        ({"username": "alice"}, "password"),
        ({"username": "alice", "password": "12345678"}, "password"),
        ({"username": "alice", "password": "kY3x"}, "password"),
        ({"username": "al\0ice", "password": PASSWORD}, "username"),
        ({"username": "alice", "password": PASSWORD, "email": "no"}, "email"),
    ],
)
def test_what_is_wrong_with_a_sign_up_is_said(web: Web, body: dict[str, str], param: str) -> None:
    answer = auth(web, "signup", json=body)
    said = answer.json()
    assert answer.status_code == 400
    assert said["errors"][0]["param"] == param
    assert said["detail"].startswith(f"{param}: ")
    assert said["code"]
    assert not User.objects.exists()


def test_nobody_passes_for_another_by_a_capital_letter(web: Web) -> None:
    token_of(sign_up(web, "alice"))
    assert sign_up(web, "Alice").json()["code"] == "username_taken"


def test_two_who_take_one_name_at_once_make_one_account(web: Web) -> None:
    answers = at_once(*[lambda name=name: sign_up(web, name) for name in ("Carol", "carol", "CAROL", "cArol")])
    assert sorted(answer.status_code for answer in answers) == [200, 400, 400, 400]
    assert {answer.json()["code"] for answer in answers if answer.status_code == 400} == {"username_taken"}
    assert User.objects.count() == 1


def test_a_wrong_password_is_refused_and_trying_many_is_stopped(web: Web) -> None:
    factories.person("alice")
    codes = [sign_in(web, password="wrong").json()["code"] for _ in range(7)]
    assert codes[0] == "username_password_mismatch"
    assert codes[-1] == "too_many_login_attempts"
    assert sign_in(web).status_code == 400


def test_limits_let_everybody_through_while_valkey_is_away(start_web: StartWeb) -> None:
    web = start_web(REDIS_URL="unix:///nowhere/valkey.sock")
    factories.person("alice")
    for _ in range(7):
        assert sign_in(web, password="wrong").json()["code"] == "username_password_mismatch"
    assert works(web, token_of(sign_in(web)))
    assert web.process.output().count("limits on signing in and up are not kept") == 1


def test_after_signing_out_the_token_is_refused_everywhere(web: Web) -> None:
    token = token_of(sign_up(web))
    with connect(web.socket_address) as connection:
        tab = Tab(connection)
        tab.send("auth", token=token)
        tab.expect("ready")
        assert auth(web, "session", "DELETE", headers={"X-Session-Token": token}).status_code == 401
        assert tab.error()["code"] == "not_signed_in"
    gone = Person(web, 0, token)
    assert gone.get("conversations/").status_code == 401
    assert auth(web, "session", "GET", headers={"X-Session-Token": token}).json()["code"] == "session_ended"
    with connect(web.socket_address) as connection:
        tab = Tab(connection)
        tab.send("auth", token=token)
        assert tab.error()["code"] == "not_signed_in"
    cookie = requests.get(f"{web.address}/api/v1/conversations/", cookies={"sessionid": token}, timeout=5)
    assert cookie.status_code == 401


# -- browsers


def browser(web: Web) -> requests.Session:
    session = requests.Session()
    session.get(f"{web.address}/_allauth/browser/v1/config", timeout=5)
    session.headers["X-CSRFToken"] = session.cookies["csrftoken"]
    return session


def signed_in_browser(web: Web) -> requests.Session:
    factories.person("alice")
    session = browser(web)
    answer = session.post(
        f"{web.address}/_allauth/browser/v1/auth/login", json={"username": "alice", "password": PASSWORD}, timeout=20
    )
    assert answer.status_code == 200, answer.text
    session.headers["X-CSRFToken"] = session.cookies["csrftoken"]
    return session


def test_a_browsers_cookie_reads_and_writes_with_the_csrf_token(web: Web) -> None:
    session = signed_in_browser(web)
    address = f"{web.address}/api/v1/conversations/"
    assert session.get(address, timeout=5).status_code == 200
    assert session.post(address, json={}, timeout=5).status_code == 201
    del session.headers["X-CSRFToken"]
    refused = session.post(address, json={}, timeout=5)
    assert (refused.status_code, refused.json()["code"]) == (403, "csrf_failed")
    assert "X-CSRFToken" in refused.json()["detail"]


def test_a_page_of_another_site_cannot_write(web: Web) -> None:
    session = signed_in_browser(web)
    evil = {"Origin": "http://evil.example"}
    refused = session.post(f"{web.address}/api/v1/conversations/", json={}, headers=evil, timeout=5)
    assert (refused.status_code, refused.json()["code"]) == (403, "csrf_failed")
    own = session.post(f"{web.address}/api/v1/conversations/", json={}, headers={"Origin": web.address}, timeout=5)
    assert own.status_code == 201


def test_the_session_cookie_is_kept_from_scripts_and_from_other_sites(web: Web) -> None:
    session = signed_in_browser(web)
    cookie = next(cookie for cookie in session.cookies if cookie.name == "sessionid")
    assert cookie.has_nonstandard_attr("HttpOnly")
    assert cookie.get_nonstandard_attr("SameSite") == "Lax"
    assert not cookie.secure


def test_the_header_decides_when_both_are_there(web: Web) -> None:
    session = signed_in_browser(web)
    answer = session.get(f"{web.address}/api/v1/conversations/", headers={"X-Session-Token": "gone" * 8}, timeout=5)
    assert answer.status_code == 401


# -- proxies


def test_behind_a_trusted_proxy_https_makes_cookies_secure(start_web: StartWeb) -> None:
    web = start_web(TRUSTED_PROXIES="127.0.0.0/8")
    answer = requests.get(
        f"{web.address}/_allauth/browser/v1/config", headers={"X-Forwarded-Proto": "https"}, timeout=5
    )
    assert all(cookie.secure for cookie in answer.cookies)
    assert answer.cookies


def tried_from(web: Web, address: str) -> str:
    name = address.replace(".", "-")  # another each time: only the address is counted
    answer = sign_in(web, name, "wrong", headers={"X-Forwarded-For": f"203.0.113.99, {address}"})
    return str(answer.json()["code"])


def test_a_client_cannot_choose_its_address(web: Web) -> None:
    codes = [tried_from(web, f"203.0.113.{number}") for number in range(12)]
    assert codes[0] == "username_password_mismatch"
    assert codes[-1] == "too_many_login_attempts"


def test_a_trusted_proxy_names_the_clients_address(start_web: StartWeb) -> None:
    web = start_web(TRUSTED_PROXIES="127.0.0.0/8")
    factories.person("alice")
    for number in range(12):
        assert tried_from(web, f"203.0.113.{number}") == "username_password_mismatch"


def test_nonsense_in_trusted_proxies_ends_the_start(start_web: StartWeb) -> None:
    with pytest.raises(RuntimeError, match="TRUSTED_PROXIES must list addresses"):
        start_web(TRUSTED_PROXIES="my-proxy")


# -- who may join


def test_where_signing_up_is_closed_it_says_so(start_web: StartWeb) -> None:
    web = start_web(SIGNUP="closed")
    answer = sign_up(web)
    assert (answer.status_code, answer.json()["code"]) == (403, "signup_closed")
    assert "closed" in answer.json()["detail"]
    assert not User.objects.exists()


@pytest.fixture
def invited_only(start_web: StartWeb) -> Web:
    return start_web(SIGNUP="invite")


def test_an_invitation_lets_one_person_join(invited_only: Web) -> None:
    by = factories.person("bob")
    code = invites.create(by)
    assert works(invited_only, token_of(sign_up(invited_only, invite=code)))
    invite = Invite.objects.get()
    assert invite.used_by == User.objects.get(username="alice")
    assert invite.created_by == by
    assert code not in str(Invite.objects.values())
    again = sign_up(invited_only, "carol", invite=code)
    assert (again.status_code, again.json()["code"]) == (400, "invite_spent")
    assert not User.objects.filter(username="carol").exists()


def test_without_a_good_invitation_nobody_joins(invited_only: Web) -> None:
    expired = invites.create()
    Invite.objects.update(expires_at=Now() - timedelta(seconds=1))
    for more, code in (
        ({}, "invite_missing"),
        ({"invite": ""}, "invite_missing"),
        ({"invite": "wrong"}, "invite_unknown"),
        ({"invite": expired}, "invite_expired"),
    ):
        answer = sign_up(invited_only, **more)
        said = answer.json()
        assert (answer.status_code, said["code"]) == (400, code)
        assert said["errors"][0]["param"] == "invite"
    assert not User.objects.exists()


def test_two_who_use_one_invitation_at_once_make_one_account(invited_only: Web) -> None:
    code = invites.create()
    answers = at_once(*[lambda n=n: sign_up(invited_only, f"person{n}", invite=code) for n in range(4)])
    assert sorted(answer.status_code for answer in answers) == [200, 400, 400, 400]
    assert {answer.json()["code"] for answer in answers if answer.status_code == 400} == {"invite_spent"}
    assert User.objects.count() == 1


def test_a_sign_up_that_fails_leaves_its_invitation_unused(invited_only: Web) -> None:
    factories.person("alice")
    code = invites.create()
    assert sign_up(invited_only, "alice", invite=code).json()["code"] == "username_taken"
    token_of(sign_up(invited_only, "carol", invite=code))


def test_the_command_prints_a_link_that_works(invited_only: Web, capsys: pytest.CaptureFixture[str]) -> None:
    factories.person("bob")
    call_command("invite", by="bob")
    link = capsys.readouterr().out
    token_of(sign_up(invited_only, invite=re.search(r"/join/([\w-]+)/", link)[1]))  # type: ignore[index]
    with pytest.raises(CommandError, match="nobody called zoe"):
        call_command("invite", by="zoe")


# -- everything else allauth has

STEPS = [
    ("GET", "config"),
    *[(method, "auth/session") for method in ("GET", "DELETE")],
    *[("POST", f"auth/{step}") for step in ("login", "signup", "reauthenticate")],
    ("POST", "account/password/change"),
]
NOT_OFFERED = [
    "auth/password/request", "auth/password/reset", "auth/email/verify", "auth/phone/verify", "auth/code/request",
    "auth/code/confirm", "account/email", "account/phone", "tokens/refresh", "nothing",
]  # fmt: skip
JUNK = [
    None, b"", b"{", b"[]", b"7", b"\xff", b"[" * 100_000,
    b'{"username": 5, "password": []}',
    b'{"username": "\\ud800", "password": "\\ud800"}',
    b'{"username": "alice", "password": "\\ud800x"}',
    b'{"username": "carol", "password": "correct horse \\ud800"}',
    b'{"current_password": {}, "new_password": "\\u0000"}',
]  # fmt: skip


@pytest.mark.parametrize("client", ["app", "browser"])
@pytest.mark.parametrize("body", JUNK)
def test_no_step_breaks_on_junk(web: Web, client: str, body: bytes | None) -> None:
    factories.person("alice")
    session = browser(web)
    for method, step in STEPS:
        answer = session.request(
            method, f"{web.address}/_allauth/{client}/v1/{step}", data=body,
            headers={"Content-Type": "application/json"}, timeout=20,
        )  # fmt: skip
        assert answer.status_code < 500, (method, step, answer.text)
        if answer.status_code >= 400:
            said = answer.json()
            assert said["code"], said
            assert said["detail"].endswith("."), said
            assert isinstance(said["retryable"], bool)


@pytest.mark.parametrize("step", NOT_OFFERED)
def test_steps_that_need_mail_are_not_there(web: Web, step: str) -> None:
    answer = browser(web).post(f"{web.address}/_allauth/app/v1/{step}", json={}, timeout=5)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_the_steps_are_described(web: Web) -> None:
    described = requests.get(f"{web.address}/_allauth/openapi.json", timeout=5).json()
    assert any(path.endswith("/auth/signup") for path in described["paths"])


def test_a_password_is_changed_with_the_old_one(web: Web) -> None:
    token = token_of(sign_up(web))
    changed = requests.post(
        f"{web.address}/_allauth/app/v1/account/password/change",
        json={"current_password": PASSWORD, "new_password": "another battery staple"},
        headers={"X-Session-Token": token},
        timeout=20,
    )
    assert changed.status_code == 200, changed.text
    assert sign_in(web).status_code == 400
    assert works(web, token_of(sign_in(web, password="another battery staple")))


def test_the_admin_signs_in_by_the_same_accounts(client: Any) -> None:
    factories.person("alice")
    assert client.login(username="alice", password=PASSWORD)
    eventually(lambda: "_auth_user_id" in client.session)
