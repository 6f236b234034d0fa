"""The machine's own Chromium under Playwright's synchronous API, beside tests that have event loops of their own."""

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from playwright.sync_api import Browser, expect, sync_playwright

from tests.web import LAN_NAME

# The one without windows starts and draws with less; it is what Playwright itself takes where nobody looks.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = f"The browser tests need Chromium and found none: apt-get install --no-install-recommends {NAMES[0]}"
PATIENCE = 30_000  # ms that an expectation may take to come true, on a machine that is busy with much else

expect.set_options(timeout=PATIENCE)


@dataclass
class Chromium:
    """A browser that runs, to be driven only inside `in_use`.

    Playwright's loop waits in the middle of its run whenever it has returned to us. As long as it counts as running,
    no other loop starts in this thread, those of asynchronous tests included; so it does not between two uses.
    """

    browser: Browser
    _loop: asyncio.AbstractEventLoop

    @contextmanager
    def in_use(self) -> Iterator[Browser]:
        with _counts_as_running(self._loop):
            yield self.browser


@contextmanager
def running_chromium() -> Iterator[Chromium]:
    """One Chromium that takes `LAN_NAME` for this machine. Contexts of it share nothing but the clipboard."""
    path = executable()
    with sync_playwright() as playwright:
        # As root Chromium has no sandbox; without a graphics card one process less draws.
        flags = ["--no-sandbox", "--disable-gpu", f"--host-resolver-rules=MAP {LAN_NAME} 127.0.0.1"]
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        loop = asyncio.get_running_loop()
        with _counts_as_running(None):
            yield Chromium(browser, loop)
        browser.close()


def executable() -> str:
    """Where Chromium is; AssertionError that says what to install when there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    assert found, MISSING
    return found


@contextmanager
def _counts_as_running(loop: asyncio.AbstractEventLoop | None) -> Iterator[None]:
    before = asyncio._get_running_loop()
    asyncio._set_running_loop(loop)
    try:
        yield
    finally:
        asyncio._set_running_loop(before)


@contextmanager
def set_aside() -> Iterator[None]:
    """In a test that uses the browser: another loop may run in this block, and nothing of Playwright may be called."""
    with _counts_as_running(None):
        yield
