"""The chat page as a person sees it: by roles and names, not by how it is built."""

import functools
import itertools
import re
from dataclasses import dataclass

from playwright.sync_api import BrowserContext, Locator, Page, expect

from conversations.models import Conversation, Message
from tests import factories
from tests.browser.chromium import PATIENCE
from tests.browser.watch import Watch
from tests.eventually import eventually

soon = functools.partial(eventually, timeout=PATIENCE / 1000, every=0.1)

# Notes every text that the last answer shows, in order.
RECORDER = """
window.shown = [];
new MutationObserver(() => {
  const answer = [...document.querySelectorAll("article[data-role=assistant]")].at(-1);
  if (!answer) return;
  const now = [answer.dataset.message, answer.querySelector(".text").textContent.trim()];
  if (String(now) !== String(window.shown.at(-1))) window.shown.push(now);
}).observe(document, { childList: true, characterData: true, subtree: true });
"""


@dataclass(eq=False)
class Chat:
    """One tab with the chat page in it."""

    name: str
    page: Page
    origin: str
    watch: Watch

    @property
    def context(self) -> BrowserContext:
        return self.page.context

    # Where things are

    @property
    def box(self) -> Locator:
        return self.page.get_by_role("textbox", name="Message")

    @property
    def send_button(self) -> Locator:
        return self.page.get_by_role("button", name="Send", exact=True)

    @property
    def stop_button(self) -> Locator:
        return self.page.get_by_role("button", name="Stop", exact=True)

    @property
    def messages(self) -> Locator:
        return self.page.get_by_role("region", name="Messages")

    @property
    def questions(self) -> Locator:
        return self.messages.locator("article[data-role=user]")

    @property
    def answer(self) -> Locator:
        """The answer to the last message: there is none yet as long as that is on its way."""
        return self.messages.locator("article[data-role=assistant]:last-child")

    @property
    def text(self) -> Locator:
        """The text of the last answer."""
        return self.answer.locator(".text")

    @property
    def progress(self) -> Locator:
        return self.answer.locator(".progress").first

    @property
    def conversations(self) -> Locator:
        return self.page.get_by_role("navigation", name="Conversations")

    @property
    def card(self) -> Locator:
        """What an empty account sees first."""
        return self.page.locator("[data-welcome]")

    # What a person does

    def open(self, path: str = "/") -> "Chat":
        self.page.goto(f"{self.origin}{path}")
        return self.connected()

    def connected(self) -> "Chat":
        expect(self.page.locator("body")).to_have_attribute("data-connection", "online")
        return self

    def say(self, text: str) -> "Chat":
        self.box.fill(text)
        self.box.press("Enter")
        return self

    def signs_in(self, name: str, password: str = factories.PASSWORD) -> None:
        """On the sign-in page."""
        self.page.get_by_label("Username", exact=True).fill(name)
        self.page.get_by_label("Password", exact=True).fill(password)
        self.page.get_by_role("button", name="Sign in", exact=True).click()

    # What is so

    def begins_to_answer(self, characters: int = 20) -> "Chat":
        expect(self.text).to_have_text(re.compile(rf"\S.{{{characters},}}", re.DOTALL))
        return self

    def is_answered(self, status: str = "done", timeout: float = 30) -> str:
        """Waits for the end of the last answer; the stored text, which is what is shown."""
        expect(self.answer).to_have_attribute("data-status", status, timeout=timeout * 1000)
        stored = self.stored.text.strip()
        soon(lambda: self.whole_text == stored, what=f"the stored text to be shown: {stored!r}")
        self.took_nothing_back()
        return stored

    @property
    def whole_text(self) -> str:
        """All the text that the last answer shows now."""
        return (self.text.text_content() or "").strip()

    @property
    def stored(self) -> Message:
        """The last answer, as the database has it."""
        return Message.objects.get(pk=self.answer.get_attribute("data-message") or "")

    @property
    def conversation(self) -> Conversation:
        return Conversation.objects.get(pk=self.page.url.rstrip("/").rpartition("/")[2])

    @property
    def shown(self) -> list[str]:
        """What the last answer showed since the page was loaded, each change."""
        last = self.answer.get_attribute("data-message")
        return [text for message, text in self.page.evaluate("window.shown") if message == last and text]

    def took_nothing_back(self) -> None:
        """Of an answer without marks: text only ever grew. Raises AssertionError."""
        for (message, earlier), (same, later) in itertools.pairwise(self.page.evaluate("window.shown")):
            assert message != same or later.startswith(earlier), f"{earlier!r} became {later!r}"
