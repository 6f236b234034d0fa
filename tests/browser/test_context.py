"""A conversation that outgrows the model: where its memory begins is seen, and what it cannot read stays in the box."""

import pytest
from playwright.sync_api import expect

from conversations.models import Conversation, Message
from tests import factories
from tests.browser.chat import Chat
from tests.browser.site import NARROW, Site, overflows

pytestmark = pytest.mark.django_db(transaction=True)

NO_MORE = "The model no longer sees what is above this line"


def turns(count: int) -> Conversation:
    """A conversation with so many turns of about 90 tokens."""
    where, parent = factories.conversation(params={"max_tokens": 40}), None
    for number in range(count):
        for role in ("user", "assistant"):
            text = f"{role} {number}: " + "What is to be seen from a lighthouse at night? " * 4
            parent = Message.objects.create(conversation=where, role=role, text=text, parent=parent)
    Conversation.objects.filter(pk=where.pk).update(leaf=parent)
    return where


def below_the_line(chat: Chat) -> str:
    """The first message that the model sees."""
    line = chat.messages.get_by_text(NO_MORE)
    expect(line).to_have_count(1)
    return line.locator("xpath=following-sibling::*[1]").locator(".text").text_content() or ""


def test_the_line_is_where_the_memory_begins_and_moves_and_what_is_too_long_stays_in_the_box(site: Site) -> None:
    site.of_slots(2, n_ctx=512).worker()
    where = turns(3)
    alice = site.person(path=f"/c/{where.pk}/")
    alice.say("Short? " * 10)
    alice.is_answered()
    expect(alice.messages.get_by_text(NO_MORE)).to_have_count(0)
    alice.say("And a longer one: " + "what else is there? " * 30)
    alice.is_answered()
    first = below_the_line(alice)
    for _ in range(2):
        alice.say("And a longer one: " + "what else is there? " * 30)
        alice.is_answered()
    second = below_the_line(alice)
    assert second != first
    alice.page.reload()
    assert below_the_line(alice) == second
    words = "Read this, please. " * 300
    alice.say(words)
    expect(alice.page.get_by_text("of 512 tokens")).to_be_visible()
    expect(alice.box).to_have_value(words)
    alice.page.set_viewport_size(NARROW)
    assert not overflows(alice.page)
