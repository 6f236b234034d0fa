"""What ends a session, for cookie, token and websocket alike; the account page; CSRF; what logs and caches keep."""

import re
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from django.contrib.auth import BACKEND_SESSION_KEY
from django.contrib.sessions.models import Session
from django.db import connection
from django.test import Client
from pytest_django import DjangoAssertNumQueries
from websockets.sync.client import connect

from chatbackend.accounts import invites, links, sessions, sign_in_links
from chatbackend.accounts.models import User
from conversations import errors, events, models, sending
from conversations.signing_in import SignedIn
from tests import factories
from tests.eventually import eventually
from tests.factories import PASSWORD
from tests.pages import Browser, post, signed_in, text, visitor, who, words
from tests.web import Person, StartWeb, Tab, Web

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_limits_from_before")]

NEW = "another battery staple"


@contextmanager
def open_socket(browser: Browser) -> Iterator[Tab]:
    """The websocket that a page of this browser has open."""
    with connect(browser.web.socket_address, additional_headers={"Cookie": f"sessionid={browser.key}"}) as connection:
        tab = Tab(connection)
        tab.expect("ready")
        yield tab


def works(browser: Browser) -> bool:
    """Whether its session counts, as a cookie and as a token."""
    as_token = Person(browser.web, 0, browser.key).get("conversations/").ok
    as_cookie = browser.open("/account/").status_code == 200
    assert as_token is as_cookie
    return as_cookie


def ended(*tabs: Tab) -> bool:
    """Whether these websockets, which do nothing but listen, are told and closed."""
    return all(tab.error()["code"] == "not_signed_in" for tab in tabs)


def change_password(browser: Browser) -> None:
    fields = {"old_password": PASSWORD, "new_password1": NEW, "new_password2": NEW}
    assert browser.send("/account/", **fields).status_code == 302


def sign_out_elsewhere(browser: Browser) -> None:
    assert browser.send("/account/sign-out-elsewhere/", page="/account/").status_code == 302


def reset_by_link(browser: Browser) -> None:
    form = browser.open(links.reset_path(factories.person("alice"))).headers["Location"]
    assert browser.send(form, new_password1=NEW, new_password2=NEW).status_code == 302


# -- what ends sessions


@pytest.mark.parametrize("end", [change_password, sign_out_elsewhere, reset_by_link])
def test_it_ends_every_other_session_and_keeps_this_one(web: Web, end: Callable[[Browser], None]) -> None:
    here, elsewhere, bob = Browser(web, "alice"), Browser(web, "alice"), Browser(web, "bob")
    with open_socket(elsewhere) as theirs, open_socket(bob) as bobs:
        end(here)
        assert ended(theirs)
        assert bobs.answers_once()
    assert works(here)
    assert not works(elsewhere)
    assert works(bob)


def test_signing_out_ends_cookie_token_and_websocket(web: Web) -> None:
    here, elsewhere = Browser(web, "alice"), Browser(web, "alice")
    key = here.key
    with open_socket(here) as tab:
        assert here.send("/sign-out/").headers["Location"] == "/sign-in/"
        assert ended(tab)
    assert not Person(web, 0, key).get("conversations/").ok
    assert works(elsewhere)


@pytest.mark.parametrize("how", ["disabled", "password", "all"])
def test_a_person_changed_by_others_is_out_at_once(web: Web, how: str) -> None:
    browser = Browser(web, "alice")
    with open_socket(browser) as tab:
        person = User.objects.get(username="alice")
        if how == "disabled":
            person.is_active = False
            person.save(update_fields=["is_active"])
        elif how == "password":
            person.set_password(NEW)
            person.save()
        else:
            sessions.end_all(person)
        assert ended(tab)
    assert not works(browser)


def test_the_websocket_of_the_new_session_works_after_signing_in(web: Web) -> None:
    factories.person("alice")
    browser = Browser(web)
    assert browser.send("/sign-in/", login="alice", password=PASSWORD).status_code == 302
    with open_socket(browser) as tab:
        assert tab.answers_once()


def test_signing_in_leaves_sessions_elsewhere_alone(web: Web) -> None:
    elsewhere = Browser(web, "alice")
    with open_socket(elsewhere) as tab:
        assert Browser(web).send("/sign-in/", login="alice", password=PASSWORD).status_code == 302
        assert tab.answers_once()
        assert tab.quiet()
    assert works(elsewhere)


# -- the account page


def test_the_account_page_says_who_one_is() -> None:
    assert "You are signed in as alice." in words(signed_in().get("/account/"))
    assert "/admin/" not in text(signed_in().get("/account/"))
    User.objects.update(is_staff=True)
    assert 'href="/admin/"' in text(signed_in().get("/account/"))


def test_a_changed_password_is_confirmed() -> None:
    browser = signed_in()
    post(browser, "/account/", old_password=PASSWORD, new_password1=NEW, new_password2=NEW)
    assert "Your password is changed. You are signed out everywhere else." in words(browser.get("/account/"))
    assert "Your password is changed" not in words(browser.get("/account/"))
    assert User.objects.get().check_password(NEW)


def test_a_password_is_not_changed_without_the_old_one() -> None:
    browser = signed_in()
    answer = post(browser, "/account/", old_password="wrong", new_password1=NEW, new_password2=NEW)
    assert re.search(r'id="id_old_password_error"><li>Your old password was entered incorrectly', text(answer))
    assert NEW not in text(answer)
    assert User.objects.get().check_password(PASSWORD)


def test_guessing_the_old_password_is_limited() -> None:
    browser = signed_in()
    answers = [post(browser, "/account/", old_password="wrong") for _ in range(6)]
    assert [answer.status_code for answer in answers] == [200] * 5 + [429]


# -- CSRF


@pytest.fixture
def paths() -> dict[str, str]:
    """The addresses of all pages, by name."""
    person = factories.person("charlie")
    return {
        "sign_in": "/sign-in/",
        "sign_up": "/sign-up/",
        "sign_out": "/sign-out/",
        "join": links.invite_path(invites.create()),
        "enter": links.sign_in_path(sign_in_links.create(person)),
        "reset": links.reset_path(person),
        "invite": "/invite/",
        "account": "/account/",
        "sign_out_elsewhere": "/account/sign-out-elsewhere/",
    }


@pytest.mark.parametrize("name", ["sign_in", "sign_up", "join", "enter", "reset"])
def test_a_visitors_form_from_another_site_is_refused(name: str, paths: dict[str, str]) -> None:
    fields = {"login": "charlie", "username": "x", "password": PASSWORD, "password1": PASSWORD}
    browser = visitor()
    answer = browser.post(paths[name], fields)
    assert answer.status_code == 403
    assert "Go back, load the page again" in words(answer)
    assert who(browser) is None


@pytest.mark.parametrize("name", ["sign_out", "invite", "account", "sign_out_elsewhere"])
def test_a_persons_form_from_another_site_is_refused(name: str, paths: dict[str, str]) -> None:
    browser = signed_in()
    assert browser.post(paths[name]).status_code == 403
    assert who(browser) == "alice"
    assert User.objects.get(username="alice").sessions_ended == 0


def test_a_sign_in_page_left_open_leads_on_once_another_tab_has_signed_in(web: Web) -> None:
    factories.person("alice")
    browser = Browser(web)
    stale = browser.form("/sign-in/")
    browser.send("/sign-in/", login="alice", password=PASSWORD)
    answer = browser.submit("/sign-in/", stale, login="alice", password=PASSWORD, next="/account/")
    assert (answer.status_code, answer.headers["Location"]) == (302, "/account/")


def test_signing_out_in_two_tabs_is_no_error(web: Web) -> None:
    browser = Browser(web, "alice")
    stale = browser.form("/sign-out/")
    browser.send("/sign-out/")
    browser.session.cookies.pop("csrftoken", None)
    answer = browser.submit("/sign-out/", stale)
    assert (answer.status_code, answer.headers["Location"]) == (302, "/sign-in/")


# -- what is kept of a page


def test_no_cache_keeps_a_page_and_no_referer_its_address(paths: dict[str, str]) -> None:
    for browser in (visitor(), signed_in()):
        for path in paths.values():
            answer = browser.get(path)
            assert "no-store" in answer["Cache-Control"], path
            assert answer["Referrer-Policy"] == "strict-origin", path


def test_no_log_has_a_secret(start_web: StartWeb) -> None:
    web = start_web(SIGNUP="invite")
    person = factories.person("alice")
    code, token = invites.create(), sign_in_links.create(person)
    reset = links.reset_path(person)
    join, enter = links.invite_path(code), links.sign_in_path(token)
    for path in (join, enter, reset, f"{enter}?x=1", enter.removesuffix("/")):
        Browser(web).open(path)
        assert Browser(web).submit(path, "").status_code in (403, 404)  # a line of Django's own
    Browser(web).send(enter)
    Browser(web).send(join, username="bob", password1=NEW)
    Browser(web).send("/sign-in/", login="alice", password="a wrong password")
    eventually(lambda: "POST /sign-in/" in web.process.output())
    said = web.process.output()
    for secret in (code, token, reset.split("/")[-2], NEW, "a wrong password"):
        assert secret not in said
    for line in ("GET /join/… 200", "GET /enter/… 200", "POST /enter/… 302", "GET /reset/… 302", "): /enter/…"):
        assert line in said, said


def test_sockets_are_told_to_look_when_the_session_is_gone_for_everybody_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = signed_in_key(factories.person("alice"))
    found: list[User | None] = []

    def look_from_elsewhere(*_: object) -> None:
        found.append(aside(lambda: sessions.person_of(key)))

    monkeypatch.setattr(events, "publish_to_person", look_from_elsewhere)
    sessions.SessionStore(key).delete()
    assert found == [None]


def aside(look: Callable[[], User | None]) -> User | None:
    """What another process sees now."""

    def closing() -> User | None:
        try:
            return look()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(closing).result()


# -- asked again for somebody known


def _disabled(user: User, key: str) -> None:
    User.objects.filter(pk=user.pk).update(is_active=False)


def _password_changed(user: User, key: str) -> None:
    user.set_password(NEW)
    user.save()


def _expired(user: User, key: str) -> None:
    Session.objects.filter(session_key=key).update(expire_date=factories.ago(1))


def _signed_out(user: User, key: str) -> None:
    Session.objects.filter(session_key=key).delete()


def _all_ended(user: User, key: str) -> None:
    sessions.end_all(user)


def _somebody_elses(user: User, key: str) -> None:
    other = signed_in_key(factories.person("bob"))
    Session.objects.filter(session_key=key).update(session_data=Session.objects.get(session_key=other).session_data)


def _of_a_backend_that_is_gone(user: User, key: str) -> None:
    kept = sessions.SessionStore(key)
    kept[BACKEND_SESSION_KEY] = "elsewhere.Backend"
    kept.save()


def signed_in_key(user: User) -> str:
    client = Client()
    client.force_login(user)
    return client.session.session_key or ""


def test_somebody_known_is_found_by_one_query(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    alice = factories.person("alice")
    key = signed_in_key(alice)
    with django_assert_num_queries(1):
        found = sessions.still(key, alice.pk)
    assert found == alice
    assert found
    assert {name: getattr(found, name) for name in ("username", "password", "date_joined", "is_staff")} == {
        name: getattr(alice, name) for name in ("username", "password", "date_joined", "is_staff")
    }


@pytest.mark.parametrize(
    "end",
    [_disabled, _password_changed, _expired, _signed_out, _all_ended, _somebody_elses, _of_a_backend_that_is_gone],
)
def test_what_ends_a_session_ends_it_for_somebody_known_too(end: Callable[[User, str], None]) -> None:
    alice = factories.person("alice")
    key = signed_in_key(alice)
    session = SignedIn(key)
    assert session.check() == session.check() == alice
    end(alice, key)
    assert sessions.still(key, alice.pk) == sessions.person_of(key) != alice
    where = factories.conversation(alice)
    with pytest.raises(errors.NotSignedIn):
        sending.send(alice.pk, where.pk, uuid.uuid4(), "Hello", None, to_leaf=True, session=session)
    assert not where.messages.exists()


def test_a_send_asks_by_itself_whether_the_session_is_as_it_was_seen(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    alice = factories.person("alice")
    session = SignedIn(signed_in_key(alice))
    assert session.check() == session.check() == alice
    where = factories.conversation(alice)
    models.Person.objects.create(pk=alice.pk)
    with django_assert_num_queries(2):
        assert sending.send(alice.pk, where.pk, uuid.uuid4(), "Hello", None, to_leaf=True, session=session).created
