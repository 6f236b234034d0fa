"""Every page about people as HTML: nothing inline, a label on every field, one heading, a way on."""

from html.parser import HTMLParser

import pytest
from django.test import Client
from pytest_django import Settings

from chatbackend.accounts import invites, links, sign_in_links
from tests import factories
from tests.pages import post, signed_in, text, visitor

pytestmark = pytest.mark.django_db(transaction=True)

WITHOUT_LABEL = {"hidden", "submit", "button"}


class Page(HTMLParser):
    """What matters of a page."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.labels: dict[str, str] = {}
        self.headings: list[str] = []
        self.title = ""
        self.inline: list[str] = []
        self._within: list[str] = []
        self._label = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        self.inline += [f"{tag} {name}" for name in given if name == "style" or name.startswith("on")]
        self.inline += [f"{tag} javascript:" for value in given.values() if (value or "").startswith("javascript:")]
        if tag in ("script", "style", "title", "label", "h1"):
            self._within.append(tag)
        if tag == "label":
            self._label = given.get("for") or ""
        if tag == "h1":
            self.headings.append("")

    def handle_endtag(self, tag: str) -> None:
        if self._within and self._within[-1] == tag:
            self._within.pop()

    def handle_data(self, data: str) -> None:
        where = self._within[-1] if self._within else ""
        if where in ("script", "style") and data.strip():
            self.inline.append(f"{where}: {data.strip()[:40]}")
        elif where == "title":
            self.title += data
        elif where == "label":
            self.labels[self._label] = self.labels.get(self._label, "") + data.strip()
        elif where == "h1":
            self.headings[-1] += data

    def all(self, *names: str) -> list[dict[str, str | None]]:
        return [given for tag, given in self.tags if tag in names]


@pytest.fixture
def sources(settings: Settings) -> dict[str, str]:
    """Every page in every state, by what it shows."""
    settings.SIGNUP = "invite"
    charlie = factories.person("charlie")
    join, enter = links.invite_path(invites.create()), links.sign_in_path(sign_in_links.create(charlie))
    me, nobody = signed_in(), visitor()
    found = {
        "sign in": nobody.get("/sign-in/?next=/account/"),
        "wrong password": post(nobody, "/sign-in/", login="charlie", password="wrong"),
        "sign up with a code": nobody.get("/sign-up/"),
        "sign up in error": post(nobody, "/sign-up/", username="charlie", password1="x", invite="x"),
        "join": nobody.get(join),
        "join in error": post(nobody, join, username="charlie", password1="x"),
        "no such invitation": nobody.get("/join/x/"),
        "joining while signed in": me.get(join),
        "enter": nobody.get(enter),
        "enter as somebody else": me.get(enter),
        "no such link": nobody.get("/enter/x/"),
        "reset": nobody.get(links.reset_path(charlie), follow=True),
        "no such reset": nobody.get("/reset/x/x/"),
        "sign out": me.get("/sign-out/"),
        "account": me.get("/account/"),
        "account in error": post(me, "/account/", old_password="x", new_password1="y", new_password2="z"),
        "invite": me.get("/invite/"),
        "invited": post(me, "/invite/"),
        "another site's form": Client(enforce_csrf_checks=True, headers={"Accept": "text/html"}).post("/sign-up/"),
    }
    settings.SIGNUP = "closed"
    closed = {"sign in when closed": nobody.get("/sign-in/"), "sign up when closed": nobody.get("/sign-up/")}
    settings.SIGNUP = "open"
    opened = {"sign in when open": nobody.get("/sign-in/"), "sign up when open": nobody.get("/sign-up/")}
    return {name: text(answer) for name, answer in (found | closed | opened).items()}


@pytest.fixture
def pages(sources: dict[str, str]) -> dict[str, Page]:
    return {name: Page(source) for name, source in sources.items()}


def test_nothing_is_inline_and_nothing_from_elsewhere(pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        assert not page.inline, name
        for given in page.all("script", "link", "img"):
            assert str(given.get("src") or given.get("href")).startswith("/static/"), (name, given)


def test_every_field_has_a_label_and_what_describes_it_is_there(pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        ids = {given["id"] for _, given in page.tags if "id" in given}
        for given in page.all("input", "textarea", "select"):
            if given.get("type") in WITHOUT_LABEL or "hidden" in given:
                continue
            assert page.labels.get(str(given["id"])), (name, given)
            assert set((given.get("aria-describedby") or "").split()) <= ids, (name, given)
            assert given.get("autocomplete"), (name, given)


def test_every_page_has_a_title_one_heading_and_a_way_on(pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        assert page.title.strip().endswith("· chatbackend"), name
        assert page.title.strip() != "· chatbackend", name
        assert len(page.headings) == 1, name
        assert page.headings[0].strip(), name
        assert page.all("button") or page.all("a"), name
        assert page.all("html")[0]["lang"] == "en", name


def test_every_form_posts_with_the_token_against_forgery(pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        tokens = [given for given in page.all("input") if given.get("name") == "csrfmiddlewaretoken"]
        assert len(tokens) == len(page.all("form")), name
        assert all(given.get("method") == "post" for given in page.all("form")), name


def test_at_most_one_thing_takes_the_focus(pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        assert len([given for _, given in page.tags if "autofocus" in given]) <= 1, name


def test_an_error_is_announced_beside_its_field_or_above_the_form(sources: dict[str, str]) -> None:
    for name in ("sign up in error", "join in error", "account in error"):
        page = Page(sources[name])
        wrong = [given for given in page.all("input") if given.get("aria-invalid") == "true"]
        assert len(wrong) >= 2, name
        assert all("_error" in str(given.get("aria-describedby")) for given in wrong), name
    assert 'role="alert"' in sources["wrong password"]
