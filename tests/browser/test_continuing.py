"""An answer that ended too early has a button that goes on with it, in every tab and after a reload."""

import pytest
from playwright.sync_api import expect

from conversations.models import Message
from tests.browser.chat import Chat
from tests.browser.site import Site
from tests.fake_llama import Script, default_answer
from tests.web import LAN_NAME

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.parametrize("host", [LAN_NAME])]


def test_what_was_stopped_or_failed_is_gone_on_with(site: Site) -> None:
    site.llama.script(Script(tokens=60))
    site.llama.script(Script(tokens=60, rate=20, times=1))
    site.worker()
    alice = site.person().say("Go on").begins_to_answer()
    alice.stop_button.click()
    expect(alice.answer.get_by_text("Stopped.")).to_be_visible()
    other = site.tab().open(alice.page.url.removeprefix(site.origin))
    more = other.answer.get_by_role("button", name="Continue")
    before = (other.text.text_content() or "").strip()
    more.dblclick()
    for tab in (alice, other):
        assert tab.is_answered() == default_answer("Go on", 60)
        expect(tab.answer.get_by_role("button", name="Continue")).to_be_hidden()
        assert tab.whole_text.startswith(before)
    expect(other.page.get_by_role("alert")).to_have_count(0)
    assert Message.objects.count() == 2
    fails_and_goes_on(site, alice)


def fails_and_goes_on(site: Site, alice: Chat) -> None:
    site.llama.script(Script(tokens=60, fault="error", after=10, times=3))
    alice.say("Try")
    expect(alice.answer).to_have_attribute("data-status", "failed")
    problem = alice.answer.get_by_role("alert")
    expect(problem).to_contain_text("What was written is kept.")
    expect(problem.get_by_role("button", name="Retry")).to_be_visible()
    alice.page.reload()
    alice.answer.get_by_role("alert").get_by_role("button", name="Continue").click()
    assert alice.is_answered() == default_answer("Try", 60)
    assert Message.objects.count() == 4
