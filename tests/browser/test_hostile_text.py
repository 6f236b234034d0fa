"""Whatever people and models write stays text: nothing runs, nothing comes into the page, no other site is asked."""

import itertools

import pytest
from playwright.sync_api import expect

from conversations import text
from conversations.models import Conversation, Message
from tests import factories, xss
from tests.browser.chat import Chat
from tests.browser.site import Site
from tests.fake_llama import Script

pytestmark = pytest.mark.django_db(transaction=True)

PAIRS = 50  # a question and an answer each: as many as a page shows at once
# What the browser made of the blocks of each answer, without the buttons that the page added.
BLOCKS = """
[...document.querySelectorAll("article[data-role=assistant] .text")].map((text) => {
  const copy = text.cloneNode(true);
  copy.querySelectorAll(".code-head > button.quiet").forEach((button) => button.remove());
  return [...copy.children].map((block) => block.outerHTML);
})
"""
QUESTIONS = """
[...document.querySelectorAll("article[data-role=user] .text")].map((text) => [text.textContent, text.children.length])
"""


def batches(size: int) -> list[list[str]]:
    hostile = [text.clean(entry) for entry in xss.corpus()]
    return [hostile[start : start + size] for start in range(0, len(hostile), size)]


def test_hostile_messages_and_answers_stay_text(site: Site) -> None:
    conversations = [of_messages(hostile) for hostile in batches(PAIRS)]
    alice = site.person()
    for where, hostile in zip(conversations, batches(PAIRS), strict=True):
        alice.open(f"/c/{where.pk}/")
        expect(alice.messages.locator("article")).to_have_count(2 * len(hostile))
        expect(alice.page.get_by_role("banner").get_by_role("heading")).to_have_text(hostile[0])
        assert alice.page.evaluate(QUESTIONS) == [[entry, 0] for entry in hostile]
        is_harmless(alice)


def of_messages(hostile: list[str]) -> Conversation:
    """A conversation in which everybody says nothing else."""
    where = factories.conversation(title=hostile[0])
    last = None
    for entry, role in itertools.product(hostile, ("user", "assistant")):
        last = Message.objects.create(conversation=where, role=role, text=entry, parent=last)
    Conversation.objects.filter(pk=where.pk).update(leaf=last)
    return where


def is_harmless(chat: Chat) -> None:
    blocks = checked(chat)
    assert blocks > chat.messages.locator("article[data-role=assistant]").count() / 2, "there was little to check"


def checked(chat: Chat) -> int:
    """Checks what the answers look like now; of how many blocks they consist. Raises Unsafe."""
    blocks = list(itertools.chain(*chat.page.evaluate(BLOCKS)))
    for block in blocks:
        xss.check(block)
    return len(blocks)


def test_hostile_answers_stay_text_while_they_stream(site: Site) -> None:
    site.of_slots(1, n_ctx=32768).worker()
    alice = site.person()
    for number, hostile in enumerate(batches(110)):
        said = "\n\n".join(hostile)
        pieces = tuple(said[start : start + 40] for start in range(0, len(said), 40))
        site.llama.script(Script(pieces=pieces, rate=40, match=f"Number {number}"))
        alice.say(f"Number {number}")
        seen = set()
        while alice.answer.get_attribute("data-status") in ("queued", "running"):
            seen.add(checked(alice))
        expect(alice.answer).to_have_attribute("data-status", "done")
        is_harmless(alice)
        assert len(seen) > 2, "it was never seen in the middle"
