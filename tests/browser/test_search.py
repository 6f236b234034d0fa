"""Finding a conversation again by what was said in it."""

import pytest
from playwright.sync_api import expect

from conversations.models import Conversation, Message
from tests import factories
from tests.browser.chat import Chat, soon
from tests.browser.site import NARROW, Site, overflows

pytestmark = pytest.mark.django_db(transaction=True)


def talk(title: str, *said: str, name: str = "alice") -> Conversation:
    """A conversation in which `said` was said, by person and model in turn."""
    where = factories.conversation(factories.person(name), title=title)
    parent = None
    for number, text in enumerate(said):
        role = Message.Role.ASSISTANT if number % 2 else Message.Role.USER
        parent = Message.objects.create(conversation=where, parent=parent, role=role, text=text)
    Conversation.objects.filter(pk=where.pk).update(leaf=parent)
    return where


def searches(chat: Chat, query: str) -> Chat:
    chat.page.get_by_label("Search conversations").fill(query)
    return chat


def test_what_was_found_is_opened_where_it_was_said(site: Site) -> None:
    long = talk("Engines", *["How?" if number % 2 == 0 else f"Answer {number}. Line." for number in range(230)])
    Message.objects.filter(text="Answer 3. Line.").update(text="The **Éngine** <b>roars</b>.")
    talk("Gardens", "Of roses", "Roses.")
    talk("Secret engines", "engine", "engine", name="bob")
    alice = site.person()
    expect(alice.conversations.get_by_role("link")).to_have_count(2)
    searches(alice, "engine purrs")
    expect(alice.conversations.get_by_text("Nothing found.")).to_be_visible()
    searches(alice, "engine")
    found = alice.conversations.get_by_role("link")
    expect(found).to_have_count(1)
    expect(found.locator("mark")).to_have_text(["Engine", "Éngine"])
    expect(found).to_contain_text("<b>roars</b>")
    assert not overflows(alice.page)
    found.click()
    expect(alice.page).to_have_url(f"{site.origin}/c/{long.pk}/")
    there = alice.messages.locator("article.found")
    expect(there).to_contain_text("Éngine")
    expect(there).to_be_in_viewport()
    expect(found).to_be_visible()
    alice.page.keyboard.press("Escape")
    alice.page.get_by_label("Search conversations").press("Escape")
    expect(alice.conversations.get_by_role("link")).to_have_count(2)
    expect(alice.conversations.get_by_role("link", name="Engines")).to_have_attribute("aria-current", "page")


def test_too_little_to_search_for_is_said_and_the_keyboard_is_enough(site: Site) -> None:
    where = talk("Steam engines", "Of steam", "Yes.")
    alice = site.person("alice", viewport=NARROW)
    alice.page.get_by_role("button", name="Conversations").click()
    box = alice.page.get_by_label("Search conversations")
    alice.watch.expect("status of 400")
    box.fill("st")
    expect(alice.conversations.get_by_role("status")).to_contain_text("at least 3 letters")
    box.press_sequentially("eam")
    expect(alice.conversations.get_by_role("link", name="Steam engines")).to_have_count(1)
    assert not overflows(alice.page)
    box.press("Enter")
    expect(alice.page).to_have_url(f"{site.origin}/c/{where.pk}/")
    soon(lambda: alice.page.locator("body").get_attribute("data-drawer") == "closed")
    expect(alice.messages.locator("article")).to_have_count(2)
