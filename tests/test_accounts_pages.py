"""The pages by which people get in: signing in and out, signing up, joining by invitation."""

import re
from datetime import timedelta

import pytest
from django.db.models.functions import Now
from django.test import Client
from pytest_django import Settings

from chatbackend.accounts import invites, links
from chatbackend.accounts.models import Invite, User
from tests import factories
from tests.factories import PASSWORD
from tests.pages import HTML, post, signed_in, text, visitor, who, words

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_limits_from_before")]


@pytest.fixture
def alice() -> User:
    return factories.person("alice")


@pytest.fixture
def browser() -> Client:
    return visitor()


# -- signing in and out


def test_a_name_and_a_password_sign_in_and_lead_on(browser: Client, alice: User) -> None:
    answer = post(browser, "/sign-in/", login="alice", password=PASSWORD, next="/account/")
    assert (answer.status_code, answer["Location"]) == (302, "/account/")
    assert who(browser) == "alice"
    assert post(Client(), "/sign-in/", login="ALICE ", password=PASSWORD)["Location"] == "/"


def test_a_page_that_needs_a_person_leads_to_signing_in_and_back(browser: Client, alice: User) -> None:
    answer = browser.get("/account/")
    assert answer["Location"] == "/sign-in/?next=/account/"
    assert 'name="next" value="/account/"' in text(browser.get(answer["Location"]))


def test_signing_in_changes_the_session_key(browser: Client, alice: User) -> None:
    before = browser.session
    before["something"] = "kept until then"
    before.save()
    key = str(before.session_key)
    browser.cookies["sessionid"] = key
    post(browser, "/sign-in/", login="alice", password=PASSWORD)
    assert browser.cookies["sessionid"].value != key
    assert not browser.session.exists(key)


ELSEWHERE = ["//evil.example/", "https://evil.example/", "/\\evil.example", "javascript:alert(1)", "http:evil.example",
             "\thttps://evil.example", "http://testserver.evil.example/", "///evil.example"]  # fmt: skip


@pytest.mark.parametrize("address", ELSEWHERE)
def test_next_cannot_lead_to_another_site(browser: Client, alice: User, address: str) -> None:
    assert post(browser, "/sign-in/", login="alice", password=PASSWORD, next=address)["Location"] == "/"
    assert browser.get("/sign-in/", {"next": address})["Location"] == "/"
    assert post(browser, "/sign-out/", next=address)["Location"] == "/sign-in/"
    assert "evil" not in text(browser.get("/sign-in/", {"next": address}))


def test_a_wrong_password_is_said_and_the_name_kept_but_not_the_password(browser: Client, alice: User) -> None:
    for name in ("alice", "nobody-of-that-name"):
        answer = post(browser, "/sign-in/", login=name, password="wrong-horse", next="/account/")
        assert "The username and/or password you specified are not correct." in words(answer)
        assert f'value="{name}"' in text(answer)
        assert 'name="next" value="/account/"' in text(answer)
        assert "wrong-horse" not in text(answer)
    assert who(browser) is None


def test_an_empty_field_is_named_beside_it(browser: Client) -> None:
    answer = post(browser, "/sign-in/", login="alice", password="")
    assert '<ul class="errorlist" id="id_password_error">' in text(answer)
    assert 'aria-invalid="true"' in text(answer)


def test_trying_many_passwords_is_stopped_here_and_at_the_api_together(browser: Client, alice: User) -> None:
    for _ in range(5):
        post(browser, "/sign-in/", login="alice", password="wrong")
    assert "Too many failed login attempts" in words(post(browser, "/sign-in/", login="alice", password=PASSWORD))
    body = {"username": "alice", "password": PASSWORD}
    answer = Client().post("/_allauth/app/v1/auth/login", body, content_type="application/json")
    assert answer.json()["code"] == "too_many_login_attempts"
    assert who(browser) is None


def test_posting_too_often_gets_a_page_that_says_so(browser: Client) -> None:
    answers = [post(browser, "/sign-in/", login=f"person{n}", password="") for n in range(31)]
    assert {answer.status_code for answer in answers[:30]} == {200}
    assert answers[30].status_code == 429
    assert "wait a minute and try again" in words(answers[30])


def test_a_disabled_account_is_told_so_only_with_its_password(browser: Client, alice: User) -> None:
    User.objects.update(is_active=False)
    assert "disabled" not in words(post(browser, "/sign-in/", login="alice", password="wrong"))
    answer = post(browser, "/sign-in/", login="alice", password=PASSWORD)
    assert (answer.status_code, who(browser)) == (403, None)
    assert "This account is disabled: ask whoever runs this site." in words(answer)


def test_who_is_signed_in_already_is_led_on() -> None:
    assert signed_in().get("/sign-in/?next=/account/")["Location"] == "/account/"


@pytest.mark.parametrize(
    ("signup", "said"),
    [
        ("open", "New here? Create an account"),
        ("invite", "Ask somebody who uses this site for an invitation link, or enter a code"),
        ("closed", "Whoever runs this site adds people"),
    ],
)
def test_the_sign_in_page_says_how_to_get_in(browser: Client, settings: Settings, signup: str, said: str) -> None:
    settings.SIGNUP = signup
    answer = browser.get("/sign-in/")
    assert said in words(answer)
    assert "Whoever runs this site can give you a link to set a new one." in words(answer)
    assert ('href="/sign-up/"' in text(answer)) is (signup != "closed")


def test_signing_out_asks_first_and_ends_the_session() -> None:
    browser = signed_in()
    key = browser.session.session_key
    assert "You are signed in as alice" in words(browser.get("/sign-out/"))
    assert who(browser) == "alice"
    assert post(browser, "/sign-out/")["Location"] == "/sign-in/"
    assert not browser.session.exists(str(key))
    assert browser.get("/sign-out/")["Location"] == "/sign-in/"


# -- joining


def test_a_name_and_a_password_make_an_account_and_lead_on(browser: Client) -> None:
    answer = post(browser, "/sign-up/", username="alice", password1=PASSWORD, next="/account/")
    assert (answer.status_code, answer["Location"]) == (302, "/account/")
    assert who(browser) == "alice"
    assert User.objects.get().check_password(PASSWORD)


def test_what_is_wrong_with_a_sign_up_is_beside_its_field_and_the_name_is_kept(browser: Client, alice: User) -> None:
    answer = post(browser, "/sign-up/", username="Alice", password1="12345678")
    assert re.search(r'id="id_username_error"><li>A user with that username already exists', text(answer))
    assert re.search(r'id="id_password1_error"><li>This password is too common', text(answer))
    assert 'value="Alice"' in text(answer)
    assert "12345678" not in text(answer)
    assert who(browser) is None


def test_signing_up_is_limited_like_at_the_api(browser: Client) -> None:
    for _ in range(20):
        post(browser, "/sign-up/", username="", password1="")
    assert post(browser, "/sign-up/", username="alice", password1=PASSWORD).status_code == 429
    assert not User.objects.exists()


def test_where_signing_up_is_closed_every_way_says_so(browser: Client, settings: Settings) -> None:
    settings.SIGNUP = "closed"
    for path in ("/sign-up/", links.invite_path(invites.create())):
        for answer in (browser.get(path), Client(headers=HTML).post(path, {"username": "a", "password1": PASSWORD})):
            assert answer.status_code == 403
            assert "Signing up is closed here: ask whoever runs this site for an account." in words(answer)
    assert not User.objects.exists()


@pytest.fixture
def by_invitation(settings: Settings) -> None:
    settings.SIGNUP = "invite"


@pytest.mark.usefixtures("by_invitation")
def test_an_invitations_link_lets_one_person_join_and_looking_at_it_spends_nothing(browser: Client) -> None:
    path = links.invite_path(invites.create())
    for _ in range(3):
        answer = browser.get(path)
        assert "You are invited." in words(answer)
        assert browser.head(path).status_code == 200
        assert 'name="invite"' not in text(answer)
    assert post(browser, path, username="alice", password1=PASSWORD)["Location"] == "/"
    assert Invite.objects.get().used_by == User.objects.get(username="alice")
    assert who(browser) == "alice"
    again = Client(headers=HTML).get(path)
    assert again.status_code == 410
    assert "This invitation has been used: ask for another." in words(again)


@pytest.mark.usefixtures("by_invitation")
def test_an_invitation_that_does_not_work_says_why(browser: Client) -> None:
    expired = invites.create()
    Invite.objects.update(expires_at=Now() - timedelta(seconds=1))
    unknown = browser.get("/join/wrong/")
    assert unknown.status_code == 410
    assert "There is no such invitation" in words(unknown)
    assert "Perhaps a part of the link is missing." in words(unknown)
    answer = browser.get(links.invite_path(expired))
    assert "This invitation has expired: ask for another." in words(answer)
    posted = Client(headers=HTML).post(links.invite_path(expired), {"username": "alice", "password1": PASSWORD})
    assert posted.status_code == 410
    assert not User.objects.exists()


@pytest.mark.usefixtures("by_invitation")
def test_a_mistake_while_joining_costs_nothing(browser: Client, alice: User) -> None:
    path = links.invite_path(invites.create())
    assert "already exists" in words(post(browser, path, username="alice", password1=PASSWORD))
    assert Invite.objects.get().used_at is None
    assert post(browser, path, username="bob", password1=PASSWORD).status_code == 302


@pytest.mark.usefixtures("by_invitation")
def test_an_invitation_taken_at_the_last_moment_is_told_on_the_form(
    browser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else uses it between this person's look and their transaction."""
    code = invites.create()
    monkeypatch.setattr(invites, "check", lambda code: None)
    Invite.objects.update(used_at=Now())
    answer = post(browser, links.invite_path(code), username="alice", password1=PASSWORD)
    assert "This invitation has been used: ask for another." in words(answer)
    assert 'value="alice"' in text(answer)
    assert not User.objects.exists()


@pytest.mark.usefixtures("by_invitation")
def test_a_bare_code_can_be_typed_in(browser: Client) -> None:
    refused = post(browser, "/sign-up/", username="alice", password1=PASSWORD, invite="wrong")
    assert re.search(r'id="id_invite_error"><li>There is no such invitation', text(refused))
    answer = post(browser, "/sign-up/", username="alice", password1=PASSWORD, invite=f" {invites.create()} ")
    assert answer.status_code == 302
    assert Invite.objects.get().used_by == User.objects.get()


def test_where_everybody_may_sign_up_an_invitation_leads_there(browser: Client) -> None:
    assert browser.get(links.invite_path(invites.create()))["Location"] == "/sign-up/"


@pytest.mark.usefixtures("by_invitation")
def test_who_has_an_account_is_told_so_and_may_sign_out_for_the_link() -> None:
    path = links.invite_path(invites.create())
    browser = signed_in()
    answer = browser.get(path)
    assert "You are signed in as alice." in words(answer)
    assert f'name="next" value="{path}"' in text(answer)
    post(browser, path, username="bob", password1=PASSWORD)
    assert not User.objects.filter(username="bob").exists()
    assert post(browser, "/sign-out/", next=path)["Location"] == path
    assert "You are invited." in words(browser.get(path))
