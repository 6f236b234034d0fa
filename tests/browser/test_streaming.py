"""An answer while it is written: whatever the person does meanwhile, all of it is there in the end, and only once."""

import json
import re

import pytest
from django.db.models.functions import Now
from playwright.sync_api import expect

from conversations.models import Conversation, Generation, Message
from tests import factories
from tests.browser.chat import Chat, soon
from tests.browser.site import Site
from tests.fake_llama import Script, default_answer

pytestmark = pytest.mark.django_db(transaction=True)

LONG = "Tell me a long story. [[tokens=120 rate=12]]"
STORY = default_answer(LONG, 120)
ENDLESS = "Go on for ever. [[tokens=500 rate=8]]"


def test_a_reload_shows_the_whole_text_at_once_and_then_goes_on(site: Site) -> None:
    site.worker()
    alice = site.person().say(LONG).begins_to_answer(100)
    before = alice.whole_text
    alice.page.reload()
    alice.begins_to_answer()
    assert alice.shown[0].startswith(before), "the text began anew"
    expect(alice.stop_button).to_be_visible()
    assert alice.is_answered() == STORY
    assert len(alice.shown) > 2, "it did not go on live"
    assert len(site.llama.requests) == 1


def test_another_conversation_and_back(site: Site) -> None:
    site.worker()
    other = factories.sent(words="In the other [[text='A word.']]")
    alice = site.person().say(ENDLESS).begins_to_answer()
    alice.conversations.get_by_role("link", name="In the other").click()
    expect(alice.text).to_have_text("A word.")
    expect(alice.send_button).to_be_visible()
    assert str(other.message.conversation_id) in alice.page.url
    alice.conversations.get_by_role("link", name="Go on for ever").click()
    goes_on(alice)


def test_the_page_closed_and_opened_again(site: Site) -> None:
    site.worker()
    alice = site.person().say(ENDLESS).begins_to_answer()
    address = alice.page.url.removeprefix(alice.origin)
    alice.page.close()
    goes_on(site.tab().open(address))


def goes_on(chat: Chat) -> None:
    """The endless answer is followed live, and can be stopped."""
    so_far = len(chat.begins_to_answer().whole_text)
    soon(lambda: len(chat.whole_text) > so_far, what="more text")
    expect(chat.answer).to_have_attribute("data-status", "running")
    chat.stop_button.click()
    assert default_answer(ENDLESS, 500).startswith(chat.is_answered("cancelled"))


def test_stop_leaves_what_was_shown(site: Site) -> None:
    site.worker()
    alice = site.person().say(ENDLESS).begins_to_answer(60)
    alice.stop_button.click()
    text = alice.is_answered("cancelled")
    assert default_answer(ENDLESS, 500).startswith(text)
    assert len(text) > 60
    expect(alice.answer.locator(".note")).to_contain_text("Stopped")
    expect(alice.send_button).to_be_visible()
    soon(lambda: site.llama.requests[0].outcome == "cancelled", what="the server to be told")
    alice.say("And now? [[text='Something else.']]")
    expect(alice.text).to_have_text("Something else.")
    assert alice.is_answered() == "Something else."


def test_two_tabs_in_step(site: Site) -> None:
    site.worker()
    first = site.person().say(LONG).begins_to_answer()
    second = site.tab().open(first.page.url.removeprefix(first.origin)).begins_to_answer()
    expect(second.questions.locator(".text")).to_have_text(LONG)
    assert first.is_answered() == second.is_answered() == STORY
    second.say("And then? [[text='Nothing.']]")
    expect(first.questions).to_have_count(2)
    expect(first.text).to_have_text("Nothing.")
    assert first.is_answered() == second.is_answered() == "Nothing."


def test_what_one_tab_renames_or_deletes_the_other_shows(site: Site) -> None:
    where = factories.sent(words="First title").message.conversation_id
    first, second = site.person(path=f"/c/{where}/"), site.tab().open(f"/c/{where}/")
    menu = first.page.get_by_label("This conversation", exact=True)
    menu.click()
    first.page.get_by_role("button", name="Rename").click()
    first.page.get_by_label("Title", exact=True).fill("Second title")
    first.page.get_by_role("dialog").get_by_role("button", name="Rename").click()
    for tab in (first, second):
        expect(tab.conversations.get_by_role("link", name="Second title")).to_be_visible()
        expect(tab.page).to_have_title(re.compile("^Second title"))
    menu.click()
    first.page.get_by_role("button", name="Delete").click()
    for tab in (first, second):
        expect(tab.page).to_have_url(f"{site.origin}/")
        expect(tab.conversations.get_by_role("link")).to_have_count(0)
    expect(second.page.get_by_role("alert")).to_contain_text("deleted")
    expect(first.page.get_by_role("alert")).to_be_hidden()
    first.page.get_by_role("button", name="Undo").click()
    expect(first.questions).to_contain_text("First title")
    expect(second.conversations.get_by_role("link", name="Second title")).to_be_visible()


def test_two_double_clicks_send_one_message(site: Site) -> None:
    site.worker()
    alice = site.person()
    alice.box.fill("Once [[text='Yes.']]")
    alice.send_button.evaluate("button => { for (let n = 0; n < 4; n++) button.click(); }")
    expect(alice.text).to_have_text("Yes.")
    alice.is_answered()
    expect(alice.messages.locator("article")).to_have_count(2)
    assert Message.objects.filter(role="user").count() == 1
    assert len(site.llama.requests) == 1


def test_who_reads_further_up_is_left_there(site: Site) -> None:
    site.llama.script(Script(text="A line.\n\n" * 400, rate=40))
    site.worker()
    alice = site.person().say("Write much")
    soon(lambda: room_above(alice) > 300, what="more than one screen")
    assert is_at_the_end(alice)
    alice.messages.hover()
    alice.page.mouse.wheel(0, -200)
    expect(alice.page.get_by_role("button", name="To the end")).to_be_visible()
    where = room_above(alice)
    grown = len(alice.whole_text) + 50
    soon(lambda: len(alice.whole_text) > grown, what="more text")
    assert room_above(alice) == where
    alice.page.get_by_role("button", name="To the end").click()
    soon(lambda: is_at_the_end(alice))
    alice.stop_button.click()
    expect(alice.answer).to_have_attribute("data-status", "cancelled")
    soon(lambda: is_at_the_end(alice))


def room_above(chat: Chat) -> int:
    return int(chat.page.evaluate("document.querySelector('#scroller').scrollTop"))


def is_at_the_end(chat: Chat) -> bool:
    script = "(({scrollHeight, clientHeight, scrollTop}) => scrollHeight - clientHeight - scrollTop)"
    return int(chat.page.evaluate(f"{script}(document.querySelector('#scroller'))")) < 60


def test_a_regenerated_answer_takes_the_place_of_the_one_before(site: Site) -> None:
    site.worker()
    site.llama.script(Script(text="The second."))
    site.llama.script(Script(text="The first.", times=1))
    alice = site.person().say("Which?")
    expect(alice.text).to_have_text("The first.")
    alice.answer.get_by_role("button", name="Regenerate").click()
    expect(alice.text).to_have_text("The second.")
    alice.is_answered()
    expect(alice.messages.locator("article")).to_have_count(2)
    alice.page.reload()
    expect(alice.text).to_have_text("The second.")
    expect(alice.messages.locator("article")).to_have_count(2)
    assert Message.objects.filter(role="assistant").count() == 2


def test_who_types_tells_the_site_before_sending(site: Site) -> None:
    """Once, and not for a slip: what is read ahead then is not shown."""
    where = factories.running().conversation
    Conversation.objects.filter(pk=where).update(title="Steam")
    Generation.objects.update(status="cancelled", fence=None, finished_at=Now())
    alice = site.person()
    told: list[dict[str, object]] = []
    alice.page.on("websocket", lambda socket: socket.on("framesent", lambda words: told.append(json.loads(words))))
    alice.open(f"/c/{where}/")

    def said(type_: str) -> list[dict[str, object]]:
        alice.page.evaluate("0")  # what the page did meanwhile is heard
        return [frame for frame in told if frame["type"] == type_]

    soon(lambda: said("subscribe"))
    alice.box.press_sequentially("And then? ", delay=60)
    alice.box.press_sequentially("And at last?")
    soon(lambda: said("typing"))
    assert said("typing") == [{"type": "typing", "conversation": str(where)}]
    alice.open("/")
    alice.box.press_sequentially("Hello")
    alice.send_button.click()
    soon(lambda: said("send"))
    assert len(said("typing")) == 1, "there is nothing to be read"
