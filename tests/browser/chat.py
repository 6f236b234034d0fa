"""The chat page as a person sees it: by roles and names, not by how it is built."""

import itertools
import re
from dataclasses import dataclass

from playwright.sync_api import BrowserContext, Locator, Page, expect

from conversations.models import Conversation, Message
from tests import factories
from tests.browser.watch import Watch

# Notes every text that the last answer shows, in order: none may take back what an earlier one showed.
RECORDER = """
window.shown = [];
new MutationObserver(() => {
  const text = [...document.querySelectorAll("article[data-role=assistant] .text")].at(-1)?.textContent ?? "";
  if (text !== (window.shown.at(-1) ?? "")) window.shown.push(text);
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
    def answers(self) -> Locator:
        return self.messages.locator("article[data-role=assistant]")

    @property
    def answer(self) -> Locator:
        """The last answer."""
        return self.answers.last

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
        """Waits for the end of the last answer; its text as it is shown, which is the stored one."""
        expect(self.answer).to_have_attribute("data-status", status, timeout=timeout * 1000)
        shown = self.text.text_content() or ""
        assert shown.strip() == self.stored.text.strip()
        self.took_nothing_back()
        return shown.strip()

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
        return [str(text).strip() for text in self.page.evaluate("window.shown")]

    def took_nothing_back(self) -> None:
        shown = self.shown
        for earlier, later in itertools.pairwise(shown):
            assert later.startswith(earlier) or not later, f"{earlier!r} became {later!r}"
