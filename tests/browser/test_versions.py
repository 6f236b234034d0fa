"""What was said can be said otherwise, what was answered asked for again, and every version be gone back to."""

import re

import pytest
from playwright.sync_api import Locator, expect

from conversations.models import Message
from tests.browser.chat import Chat
from tests.browser.site import NARROW, Site, overflows
from tests.fake_llama import Script
from tests.web import LAN_NAME

pytestmark = pytest.mark.django_db(transaction=True)


def edits(chat: Chat, question: Locator, text: str) -> Locator:
    """The box, with `text` in place of what was said."""
    question.hover()
    question.get_by_role("button", name="Edit").click()
    box = question.get_by_role("textbox")
    box.fill(text)
    return box


def test_an_edited_message_is_another_version_and_both_stay_reachable_on_every_device(site: Site) -> None:
    site.worker()
    alice = site.person().say("First [[text='One.']]")
    alice.is_answered()
    alice.say("Second [[text='Two.']]").is_answered()
    other = site.tab().open(alice.page.url.removeprefix(site.origin))
    first = alice.questions.first
    box = edits(alice, first, "Other [[text='Three.']]")
    expect(box).to_be_focused()
    box.press("Escape")
    expect(first.locator(".text")).to_have_text("First [[text='One.']]")
    edits(alice, first, "Other [[text='Three.']]").press("Enter")
    expect(alice.messages.locator("article")).to_have_count(2)
    alice.is_answered()
    for tab in (alice, other):
        expect(tab.messages.locator(".text")).to_have_text(["Other [[text='Three.']]", "Three."])
        expect(tab.questions.get_by_role("group", name="Versions")).to_contain_text("2 of 2")
    alice.questions.get_by_role("button", name="Version before").click()
    for tab in (alice, other):
        expect(tab.messages.locator(".text")).to_have_count(4)
        expect(tab.text).to_have_text("Two.")
        expect(tab.questions.first.get_by_role("group", name="Versions")).to_contain_text("1 of 2")
    expect(alice.questions.first.get_by_role("button", name="Version before")).to_be_disabled()
    alice.say("Third [[text='Four.']]").is_answered()
    alice.page.reload()
    expect(alice.messages.locator("article")).to_have_count(6)
    assert Message.objects.count() == 8


def test_versions_of_an_answer_and_an_edit_on_a_telephone(site: Site) -> None:
    site.worker()
    site.llama.script(Script(text="The second."))
    site.llama.script(Script(text="The first.", times=1))
    alice = site.person("alice", viewport=NARROW, has_touch=True)
    alice.box.fill("Which?")
    alice.send_button.click()
    alice.is_answered()
    alice.answer.get_by_role("button", name="Regenerate").click()
    expect(alice.text).to_have_text("The second.")
    alice.is_answered()
    alice.answer.get_by_role("button", name="Version before").click()
    expect(alice.text).to_have_text("The first.")
    assert not overflows(alice.page)
    alice.questions.get_by_role("button", name="Edit").click()
    assert not overflows(alice.page)
    alice.questions.get_by_role("textbox").fill("What?")
    alice.questions.get_by_role("button", name="Send").click()
    expect(alice.questions.locator(".text")).to_have_text(["What?"])
    alice.is_answered()


@pytest.mark.parametrize("host", [LAN_NAME])
def test_a_refused_edit_stays_in_its_editor_with_the_reason_also_through_a_reload(site: Site) -> None:
    site.worker()
    alice = site.person().say("First [[text='One.']]")
    alice.is_answered()
    question, asked = alice.questions.first, list[str]()
    alice.page.on("request", lambda request: asked.append(request.url))
    edits(alice, question, "x" * 200_001).press("Enter")
    for _ in range(2):
        expect(question.get_by_role("alert")).to_contain_text("200,000 are allowed")
        assert question.get_by_role("textbox").evaluate("box => box.value.length") == 200_001
        expect(alice.box).to_have_value("")
        alice.page.reload()
    assert not [address for address in asked if "characters=200001" in address], "no price for what cannot be sent"
    question.get_by_role("textbox").fill("Other [[text='Two.']]")
    alice.page.reload()
    expect(question.get_by_role("textbox")).to_have_value("Other [[text='Two.']]")
    alice.say("Meanwhile [[text='Three.']]").is_answered()
    question.get_by_role("button", name="Send").click()
    expect(alice.text).to_have_text("Two.")
    alice.is_answered()
    expect(alice.questions.get_by_role("group", name="Versions")).to_contain_text("2 of 2")
    alice.page.reload()
    expect(alice.text).to_have_text("Two.")
    expect(alice.questions.get_by_role("textbox")).to_be_hidden()


@pytest.mark.parametrize("host", [LAN_NAME])
def test_an_edit_says_beforehand_what_it_costs_if_that_is_much(site: Site) -> None:
    site.worker()
    alice = site.person().say(f"[[prefill=80 text='Read.']] {'some words to read ' * 80}")
    alice.is_answered()
    question = alice.questions.first
    question.hover()
    question.get_by_role("button", name="Edit").click()
    box, said = question.get_by_role("textbox"), question.get_by_role("status")
    expect(said).to_be_empty()
    box.press("Control+Home")
    box.type("Please: ")
    expect(said).to_have_text(re.compile(r"^This re-reads about \d+0 tokens, roughly \d+ to \d+ s\.$"))
    box.press("Escape")
    expect(question.get_by_role("button", name="Edit")).to_be_focused()
