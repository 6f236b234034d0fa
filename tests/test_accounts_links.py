"""Links that carry a secret (invitations, signing in once, a new password), and one's own account."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db.models.functions import Now
from django.test import Client
from pytest_django import Settings

from chatbackend.accounts import invites, links, sign_in_links
from chatbackend.accounts.models import Invite, SignInLink, User
from tests import factories
from tests.concurrently import at_once
from tests.factories import PASSWORD
from tests.pages import HTML, JSON, Browser, fetch, post, signed_in, text, visitor, who, words
from tests.web import Web

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_limits_from_before")]

NEW = "another battery staple"


@pytest.fixture
def person() -> User:
    return factories.person("alice")


# -- inviting


def test_the_chat_page_gets_an_invitation_as_json(person: User) -> None:
    made = fetch(signed_in(), "/invite/").json()
    assert made == {"link": made["link"], "days": 7, "hint": ""}
    found = re.fullmatch(r"http://testserver/join/([\w-]{22})/", made["link"])
    assert found
    invites.check(found[1])
    assert Invite.objects.get().created_by == person


def test_without_scripts_the_link_comes_as_a_page() -> None:
    browser = signed_in()
    assert "within 7 days" in words(browser.get("/invite/"))
    assert not Invite.objects.exists()
    assert re.search(r"<code[^>]*>http://testserver/join/[\w-]{22}/</code>", text(post(browser, "/invite/")))


@pytest.mark.parametrize(
    ("bound", "host", "said"),
    [
        ("127.0.0.1", "127.0.0.1:8000", "Start with HOST=0.0.0.0"),
        ("0.0.0.0", "localhost:8000", "by its network address"),
        ("0.0.0.0", "[::1]", "by its network address"),
        ("127.0.0.1", "testserver", ""),
    ],
)
def test_a_link_that_only_this_machine_can_open_says_so(settings: Settings, bound: str, host: str, said: str) -> None:
    settings.HOST = bound
    made = fetch(signed_in(), "/invite/", Host=host).json()
    assert made["link"].startswith(f"http://{host}/join/")
    assert said in made["hint"]
    assert bool(said) is bool(made["hint"])


def test_a_person_has_at_most_ten_invitations_that_nobody_used(person: User) -> None:
    codes = [invites.create_for(person) for _ in range(10)]
    refused = fetch(signed_in(), "/invite/")
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_invites")
    assert refused.json()["detail"] == "You have 10 invitations that nobody has used yet: hand them out first."
    assert "hand them out first" in words(post(signed_in(), "/invite/"))
    assert fetch(signed_in("bob"), "/invite/").status_code == 200
    invites.spend(Invite.objects.order_by("pk")[0], person)
    assert fetch(signed_in(), "/invite/").status_code == 200
    assert fetch(signed_in(), "/invite/").status_code == 429
    Invite.objects.filter(used_at=None).update(expires_at=Now())
    assert fetch(signed_in(), "/invite/").status_code == 200
    assert len(set(codes)) == 10


def test_the_staff_invites_any_number(person: User) -> None:
    User.objects.update(is_staff=True)
    person.refresh_from_db()
    assert len({invites.create_for(person) for _ in range(11)}) == 11


def test_two_at_once_do_not_both_get_the_tenth_invitation(web: Web) -> None:
    alice = factories.person("alice")
    for _ in range(9):
        invites.create_for(alice)
    browsers = [Browser(web, "alice") for _ in range(4)]
    answers = at_once(*[lambda browser=browser: browser.fetch("/invite/") for browser in browsers])
    assert sorted(answer.status_code for answer in answers) == [200, 429, 429, 429]


def test_nobody_invites_where_signing_up_is_closed(settings: Settings) -> None:
    settings.SIGNUP = "closed"
    refused = fetch(signed_in(), "/invite/")
    assert (refused.status_code, refused.json()["code"]) == (403, "signup_closed")
    assert "nobody can be invited" in refused.json()["detail"]
    assert "nobody can be invited" in words(signed_in().get("/invite/"))
    assert "Invite somebody" not in words(signed_in().get("/account/"))


def test_who_is_not_signed_in_cannot_invite() -> None:
    client = Client()
    refused = client.post("/invite/", headers=JSON)
    assert (refused.status_code, refused.json()["code"]) == (401, "not_signed_in")
    assert client.post("/invite/", headers=HTML)["Location"] == "/sign-in/?next=/invite/"
    assert not Invite.objects.exists()


# -- signing in once, by a link


def test_a_sign_in_link_works_once_and_looking_at_it_spends_nothing(person: User) -> None:
    path = links.sign_in_path(sign_in_links.create(person))
    browser = visitor()
    for _ in range(3):
        assert "This link signs you in as alice. It works once." in words(browser.get(path))
        assert browser.head(path).status_code == 200
    assert who(browser) is None
    assert post(browser, path)["Location"] == "/"
    assert who(browser) == "alice"
    for again in (visitor().get(path), Client(headers=HTML).post(path)):
        assert again.status_code == 410
        assert "This sign-in link has been used, and it works only once." in words(again)
        assert "Sign in with your password, or ask whoever runs this site for another link." in words(again)


def test_a_sign_in_link_works_for_ten_minutes(person: User) -> None:
    path = links.sign_in_path(sign_in_links.create(person))
    SignInLink.objects.update(expires_at=Now() + timedelta(seconds=5))
    assert visitor().get(path).status_code == 200
    SignInLink.objects.update(expires_at=Now())
    for answer in (visitor().get(path), Client(headers=HTML).post(path)):
        assert answer.status_code == 410
        assert "This sign-in link is too old: it works for 10 minutes." in words(answer)


def test_a_sign_in_link_expires_ten_minutes_after_it_was_made(person: User) -> None:
    sign_in_links.create(person)
    link = SignInLink.objects.get()
    assert timedelta(minutes=10) - timedelta(seconds=1) < link.expires_at - link.created_at <= timedelta(minutes=10)


def test_no_table_has_the_token(person: User) -> None:
    token = sign_in_links.create(person)
    assert len(token) == 43
    assert token not in str(SignInLink.objects.values())


def test_an_unknown_sign_in_link_says_so(person: User) -> None:
    token = sign_in_links.create(person)
    for path in ("/enter/x/", links.sign_in_path(token[:-1])):
        answer = visitor().get(path)
        assert answer.status_code == 410
        assert "There is no such sign-in link; perhaps a part of it is missing." in words(answer)


def test_a_sign_in_link_of_a_disabled_account_signs_nobody_in(person: User) -> None:
    path = links.sign_in_path(sign_in_links.create(person))
    User.objects.update(is_active=False)
    client = Client(headers=HTML)
    assert "This account is disabled." in words(client.post(path))
    assert who(client) is None


def test_of_two_who_use_a_sign_in_link_at_once_one_gets_in(web: Web) -> None:
    path = links.sign_in_path(sign_in_links.create(factories.person("alice")))
    browsers = [Browser(web) for _ in range(6)]
    forms = [browser.form(path) for browser in browsers]
    posts = [lambda b=b, form=form: b.submit(path, form) for b, form in zip(browsers, forms, strict=True)]
    assert sorted(answer.status_code for answer in at_once(*posts)) == [302] + [410] * 5
    assert len([browser for browser in browsers if browser.open("/account/").status_code == 200]) == 1


def test_a_link_for_who_is_signed_in_already_is_not_spent(person: User) -> None:
    path = links.sign_in_path(sign_in_links.create(person))
    browser = signed_in()
    key = browser.session.session_key
    assert browser.get(path)["Location"] == "/"
    assert browser.session.session_key == key
    assert visitor().get(path).status_code == 200


def test_a_link_for_somebody_else_ends_the_session_there_was_and_says_so_first(person: User) -> None:
    path = links.sign_in_path(sign_in_links.create(person))
    browser = signed_in("bob")
    key = str(browser.session.session_key)
    assert "You are signed in as bob: that ends here." in words(browser.get(path))
    post(browser, path)
    assert who(browser) == "alice"
    assert not browser.session.exists(key)


def test_links_long_past_are_removed_when_another_is_made(person: User) -> None:
    for _ in range(2):
        sign_in_links.create(person)
    first = SignInLink.objects.order_by("pk")[0]
    SignInLink.objects.filter(pk=first.pk).update(expires_at=Now() - timedelta(days=1, seconds=1))
    sign_in_links.create(person)
    assert not SignInLink.objects.filter(pk=first.pk).exists()
    assert SignInLink.objects.count() == 2


def test_the_command_prints_links_by_the_sites_addresses(
    person: User, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.HOST, settings.PORT = "127.0.0.1", 8123
    call_command("sign_in_link", "alice")
    printed = capsys.readouterr().out
    path = printed.strip().removeprefix("http://127.0.0.1:8123")
    assert post(visitor(), path)["Location"] == "/"
    settings.PORT = 0
    call_command("sign_in_link", "alice")
    assert re.fullmatch(r"/enter/[\w-]{43}/  \(after the site's address\)\n", capsys.readouterr().out)


def test_the_command_names_what_is_wrong(person: User) -> None:
    with pytest.raises(CommandError, match="There is nobody called zoe"):
        call_command("sign_in_link", "zoe")
    User.objects.update(is_active=False)
    with pytest.raises(CommandError, match="The account of alice is disabled"):
        call_command("sign_in_link", "alice")
    assert not SignInLink.objects.exists()


# -- a new password, by an administrator's link


def set_password(browser: Client, path: str, password: str = NEW, again: str = "") -> Any:
    """Follow a reset link and fill in the page it leads to."""
    form = browser.get(path)["Location"]
    return post(browser, form, new_password1=password, new_password2=again or password)


def test_a_reset_link_sets_a_password_signs_in_and_works_once(person: User) -> None:
    path = links.reset_path(person)
    browser = visitor()
    assert "Choose a new password for alice." in words(browser.get(path, follow=True))
    assert set_password(browser, path)["Location"] == "/"
    assert who(browser) == "alice"
    person.refresh_from_db()
    assert person.check_password(NEW)
    again = visitor().get(path)
    assert again.status_code == 410
    assert "This link does not work any more" in words(again)
    assert "Ask whoever runs this site for a new one." in words(again)


def test_the_secret_of_a_reset_link_leaves_the_address_at_once(person: User) -> None:
    path = links.reset_path(person)
    answer = visitor().get(path)
    assert answer["Location"] == re.sub(r"[^/]+/$", "set-password/", path)


def test_a_reset_link_dies_with_age_and_with_the_next_sign_in(person: User, settings: Settings) -> None:
    path = links.reset_path(person)
    settings.PASSWORD_RESET_TIMEOUT = -1
    assert visitor().get(path).status_code == 410
    settings.PASSWORD_RESET_TIMEOUT = 60
    assert visitor().get(path).status_code == 302
    post(visitor(), "/sign-in/", login="alice", password=PASSWORD)
    assert visitor().get(path).status_code == 410


@pytest.mark.parametrize("path", ["/reset/x/y/", "/reset/MQ/set-password/", "/reset/MTIzNDU2/abc-def/", "/reset/AA/a/"])
def test_nonsense_instead_of_a_reset_link_says_so(person: User, path: str) -> None:
    assert visitor().get(path).status_code == 410


def test_a_weak_or_mistyped_new_password_is_told_beside_the_field(person: User) -> None:
    browser = visitor()
    weak = set_password(browser, links.reset_path(person), "alice1234")
    assert re.search(r'id="id_new_password2_error"><li>The password is too similar to the username', text(weak))
    typo = set_password(browser, links.reset_path(person), NEW, "something else")
    assert "didn’t match" in words(typo)
    assert NEW not in text(typo)
    person.refresh_from_db()
    assert person.check_password(PASSWORD)


def test_an_administrator_who_tries_a_reset_link_stays_who_they_are(person: User) -> None:
    browser = signed_in("bob")
    answer = set_password(browser, links.reset_path(person))
    assert "alice can sign in with the new password." in words(answer)
    assert who(browser) == "bob"
    person.refresh_from_db()
    assert person.check_password(NEW)


def test_a_disabled_person_is_not_signed_in_by_a_new_password(person: User) -> None:
    path = links.reset_path(person)
    User.objects.update(is_active=False)
    browser = visitor()
    assert set_password(browser, path).status_code == 403
    assert who(browser) is None
