"""Where the browser tests run: the parts of the product, and who visits it."""

import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import pytest
from django.conf import settings
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize

from chatbackend.accounts.models import User
from tests import factories
from tests.browser.chat import RECORDER, Chat
from tests.browser.chromium import PATIENCE
from tests.browser.watch import Watch
from tests.eventually import eventually
from tests.fake_llama import FakeLlama
from tests.stack import Process, StartProcess
from tests.web import LAN_NAME, Kill, Web, answers, session_of, web_on

WIDE: ViewportSize = {"width": 1024, "height": 720}
NARROW: ViewportSize = {"width": 360, "height": 640}

# On loopback browsers let pages do what they may over https only, at a name of the LAN not.
everywhere = pytest.mark.parametrize("host", ["127.0.0.1", LAN_NAME], ids=["loopback", "lan-name"])

# The window, and the part of the chat page that scrolls in its place.
TOO_WIDE = """
[document.documentElement, document.querySelector("#scroller")]
  .filter((one) => one && one.scrollWidth > one.clientWidth)
  .map((one) => `${one.scrollWidth} pixels in ${one.clientWidth}`)
"""


@dataclass
class Visitor:
    """A browser of somebody's own: nothing in it is anybody else's."""

    context: BrowserContext
    watch: Watch


@dataclass
class Site:
    """A web process under one of its names. Made for one test; closes what it opened."""

    host: str
    web: Web
    browser: Browser
    start_worker: StartProcess
    llama: FakeLlama
    visitors: dict[str, Visitor] = field(default_factory=dict)
    workers: list[Process] = field(default_factory=list)
    _open: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    @property
    def origin(self) -> str:
        return self.web.address.replace("127.0.0.1", self.host)

    # Its parts

    def worker(self, **environment: str) -> Process:
        """A worker for the scripted llama-server."""
        self.workers.append(self.start_worker(**{"LLAMA_SERVERS": self.llama.url, **environment}))
        return self.workers[-1]

    def of_slots(self, slots: int, **options: Any) -> "Site":
        """The same with a llama-server that has so many slots."""
        self.llama = self._open.enter_context(FakeLlama(slots=slots, **options))
        return self

    def own_web(self, **environment: str) -> Kill:
        """From now on a web process of this test alone; call what this returns to kill it and start the next."""
        listener = self._open.enter_context(socket.create_server(("127.0.0.1", 0), backlog=100))
        self.web, kill = self._open.enter_context(web_on(listener, **environment))
        eventually(lambda: answers(self.web), 40, what="the web process to answer")
        return kill

    def behind(self, proxy: Callable[[int], AbstractContextManager[int]]) -> "Site":
        """Whoever visits from now on comes through such a proxy."""
        port = urlsplit(self.web.address).port
        assert port
        self.web = replace(self.web, address=f"http://127.0.0.1:{self._open.enter_context(proxy(port))}")
        return self

    # Who visits

    def visitor(self, name: str = "nobody", **options: Any) -> Chat:
        """Somebody with a browser of their own, signed in nowhere, in an empty tab."""
        # Moving dots and drawers cost a core where nothing but the processor draws.
        options = {"viewport": WIDE, "reduced_motion": "reduce", **options}
        context = self._open.enter_context(self.browser.new_context(**options))
        context.set_default_timeout(PATIENCE)
        context.add_init_script(RECORDER)
        self.visitors[name] = Visitor(context, Watch(context, self.origin))
        return self.tab(name)

    def person(self, name: str = "alice", path: str = "/", **options: Any) -> Chat:
        """`name`, signed in, who looks at `path`."""
        visitor = self.visitor(name, **options)
        cookie = {"name": settings.SESSION_COOKIE_NAME, "value": session_of(name), "url": self.origin}
        visitor.page.context.add_cookies([cookie])  # type: ignore[list-item]
        return visitor.open(path)

    def administrator(self, path: str = "/admin/") -> Chat:
        """Somebody who may do everything, in the admin."""
        User.objects.filter(pk=factories.person("root").pk).update(is_staff=True, is_superuser=True)
        tab = self.person("root")
        tab.page.goto(f"{self.origin}{path}")
        return tab

    def tab(self, name: str = "alice") -> Chat:
        """One more tab of somebody who is here."""
        visitor = self.visitors[name]
        return Chat(name, visitor.context.new_page(), self.origin, visitor.watch)

    @property
    def problems(self) -> dict[str, list[str]]:
        return {name: visitor.watch.problems for name, visitor in self.visitors.items() if visitor.watch.problems}


def overflows(page: Page) -> list[str]:
    """What is wider than the window and does not scroll by itself."""
    return [f"{page.url}: {wide}" for wide in page.evaluate(TOO_WIDE)]
