"""What a page does that no page may do, noted as it happens."""

import re

from playwright.sync_api import BrowserContext, ConsoleMessage, Dialog, Page, Request, WebError, WebSocket

# A page that goes away takes its requests with it.
GONE_WITH_THE_PAGE = "net::ERR_ABORTED"
# What Chromium says of a header that helps where https is spoken, on every page where it is not.
ON_PLAIN_HTTP = "The Cross-Origin-Opener-Policy header has been ignored"
OWN_SCHEMES = ("data:", "blob:", "about:")


class Watch:
    """Watches every page of a context of the site at `origin`; `problems` must be empty at the end of a test."""

    def __init__(self, context: BrowserContext, origin: str) -> None:
        self.origin = origin
        self.console: list[str] = []
        self.dialogs: list[str] = []
        self.strangers: list[str] = []  # addresses of other sites that were asked for
        self._errors: list[str] = []
        self._expected = [re.compile(ON_PLAIN_HTTP)]
        context.on("console", self._said)
        context.on("weberror", self._raised)
        context.on("dialog", self._asked)
        context.on("request", self._requested)
        context.on("requestfailed", self._failed)
        context.on("page", self._opened)

    def expect(self, *patterns: str) -> None:
        """Errors that match one of these are part of the test, from its beginning to its end."""
        self._expected += map(re.compile, patterns)

    @property
    def problems(self) -> list[str]:
        unexpected = [error for error in self._errors if not any(one.search(error) for one in self._expected)]
        return [*unexpected, *self.dialogs, *(f"asked another site: {address}" for address in self.strangers)]

    def _said(self, message: ConsoleMessage) -> None:
        place = message.location.get("url", "")
        line = f"{message.type}: {message.text} ({place})"
        if ON_PLAIN_HTTP not in line:
            self.console.append(line)
        if message.type in ("error", "warning"):
            self._errors.append(line)

    def _raised(self, error: WebError) -> None:
        self._errors.append(f"uncaught: {error.error.message}")

    def _asked(self, dialog: Dialog) -> None:
        self.dialogs.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _requested(self, request: Request) -> None:
        self._visit(request.url)

    def _failed(self, request: Request) -> None:
        if request.failure != GONE_WITH_THE_PAGE:
            self._errors.append(f"failed: {request.method} {request.url}: {request.failure}")

    def _opened(self, page: Page) -> None:
        page.on("websocket", self._connected)

    def _connected(self, socket: WebSocket) -> None:
        self._visit(socket.url.replace("ws", "http", 1))

    def _visit(self, address: str) -> None:
        if not address.startswith((f"{self.origin}/", *OWN_SCHEMES)):
            self.strangers.append(address)
