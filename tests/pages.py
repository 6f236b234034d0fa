"""Browsers without scripts: Django's test client, or over http to the real web process. Both are checked for CSRF."""

import re
from typing import Any
from urllib.parse import urlsplit

import requests
from django.contrib.auth import SESSION_KEY
from django.test import Client

from chatbackend.accounts.models import User
from tests import factories
from tests.web import Web, session_of

HTML = {"Accept": "text/html"}
JSON = {"Accept": "*/*"}  # what `fetch` asks for


def visitor() -> Client:
    """Somebody whom the site does not know."""
    return Client(enforce_csrf_checks=True, headers=HTML)


def signed_in(name: str = "alice") -> Client:
    """The browser of `name`."""
    browser = visitor()
    browser.force_login(factories.person(name))
    return browser


def post(browser: Client, path: str, **fields: str) -> Any:
    """Open the page, fill in its form, send it."""
    token = _token_in(text(browser.get(path, follow=True)))
    return browser.post(path, {"csrfmiddlewaretoken": token, **fields})


def fetch(browser: Client, path: str, **headers: str) -> Any:
    """POST as a script of a page does."""
    browser.get("/account/")
    token = browser.cookies["csrftoken"].value
    return browser.post(path, headers={**JSON, "X-CSRFToken": token, **headers})


def text(answer: Any) -> str:
    return str(answer.content.decode())


def words(answer: Any) -> str:
    """What a page says, without its tags."""
    body = re.sub(r"<head>.*</head>|</?(strong|a|code)\b[^>]*>", "", text(answer), flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", body).split())


def who(browser: Client) -> str | None:
    """The name that the browser is signed in by."""
    found = User.objects.filter(pk=browser.session.get(SESSION_KEY, 0)).first()
    return found.username if found else None


class Browser:
    """A browser at a real web process; `name` is signed in. Redirects are not followed."""

    def __init__(self, web: Web, name: str = "") -> None:
        self.web = web
        self.session = requests.Session()
        self.session.headers.update(HTML)
        if name:
            self.session.cookies.set("sessionid", session_of(name), domain=_host(web))

    @property
    def key(self) -> str:
        """The session's, which is its token too."""
        return str(self.session.cookies["sessionid"])

    def open(self, path: str) -> requests.Response:
        return self._request("GET", path)

    def form(self, page: str) -> str:
        """Open a page that has a form; the secret that must be sent along."""
        return _token_in(self.open(page).text)

    def submit(self, path: str, form: str, **fields: str) -> requests.Response:
        return self._request("POST", path, data={"csrfmiddlewaretoken": form, **fields})

    def send(self, path: str, page: str = "", **fields: str) -> requests.Response:
        """Open `page` (or `path`), fill in its form, send it to `path`."""
        return self.submit(path, self.form(page or path), **fields)

    def fetch(self, path: str) -> requests.Response:
        """POST as a script of a page does."""
        self.open("/account/")
        return self._request("POST", path, headers={**JSON, "X-CSRFToken": str(self.session.cookies["csrftoken"])})

    def _request(self, method: str, path: str, **more: Any) -> requests.Response:
        return self.session.request(method, self.web.address + path, timeout=20, allow_redirects=False, **more)


def _host(web: Web) -> str:
    return str(urlsplit(web.address).hostname)


def _token_in(page: str) -> str:
    found = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
    assert found, f"no form in {page}"
    return found[1]
