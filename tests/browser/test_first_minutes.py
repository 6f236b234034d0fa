"""From an invitation to two people whose answers stream at once."""

import re

import pytest
from playwright.sync_api import Page, expect

from chatbackend.accounts import invites
from tests import factories
from tests.browser.chat import Chat
from tests.browser.site import Site, everywhere
from tests.fake_llama import default_answer
from tests.web import LAN_NAME

pytestmark = pytest.mark.django_db(transaction=True)


@everywhere
def test_a_lan_name_is_no_secure_context(site: Site) -> None:
    page = site.visitor().page
    page.goto(f"{site.origin}/sign-in/")
    secure = LAN_NAME not in site.origin
    assert page.evaluate("isSecureContext") == secure
    assert page.evaluate("typeof crypto.randomUUID === 'function'") == secure
    assert page.evaluate("Boolean(navigator.clipboard)") == secure
    assert page.evaluate("Boolean(navigator.serviceWorker)") == secure


@everywhere
def test_somebody_signs_in_and_out(site: Site) -> None:
    factories.person("alice")
    visitor = site.visitor()
    visitor.page.goto(f"{site.origin}/")
    expect(visitor.page).to_have_url(re.compile("/sign-in/"))
    visitor.signs_in("alice")
    visitor.connected()
    assert visitor.page.url == f"{site.origin}/"
    visitor.page.locator("summary", has_text="alice").click()
    visitor.page.get_by_role("button", name="Sign out").click()
    expect(visitor.page).to_have_url(re.compile("/sign-in/"))
    visitor.page.go_back()
    expect(visitor.page).to_have_url(re.compile("/sign-in/"))


def test_a_wrong_password_is_said_and_the_name_kept(site: Site) -> None:
    factories.person("alice")
    visitor = site.visitor()
    visitor.watch.expect("status of 400")
    visitor.page.goto(f"{site.origin}/sign-in/")
    visitor.signs_in("alice", "wrong")
    expect(visitor.page.get_by_role("alert")).to_contain_text("not correct")
    expect(visitor.page.get_by_label("Username", exact=True)).to_have_value("alice")
    expect(visitor.page.get_by_label("Password", exact=True)).to_have_value("")


def test_one_signs_up_and_invites_another_and_both_stream_at_once(site: Site) -> None:
    site.worker()
    site.own_web(SIGNUP="invite")
    first = site.visitor("first")
    first.page.goto(f"{site.origin}/join/{invites.create()}/")
    signs_up(first.page, "frieda")
    link = invites_somebody(first)
    second = site.visitor("second")
    second.page.goto(link)
    signs_up(second.page, "otto")
    expect(second.connected().card).to_be_visible()

    words = {chat: f"I am {chat.name}. [[tokens=80 rate=8]]" for chat in (first, second)}
    for chat in words:
        chat.say(words[chat])
    for chat in words:
        chat.begins_to_answer()
    for chat in words:
        expect(chat.answer).to_have_attribute("data-status", "running")
    for chat in words:
        assert chat.is_answered() == default_answer(words[chat], 80)
        expect(chat.conversations.get_by_role("link")).to_have_count(1)
        expect(chat.messages.locator("article")).to_have_count(2)
    assert site.llama.most_deferred == 0


def invites_somebody(chat: Chat) -> str:
    """The link that the card of an empty account gives."""
    expect(chat.connected().card).to_be_visible()
    expect(chat.box).to_be_focused()
    chat.card.get_by_role("button", name="Invite").click()
    link = chat.card.locator("#invite-link .copybox code")
    expect(link).to_have_text(re.compile(rf"^{re.escape(chat.origin)}/join/.+/$"))
    return link.text_content() or ""


def signs_up(page: Page, name: str) -> None:
    page.get_by_label("Username", exact=True).fill(name)
    page.get_by_label("Password", exact=True).fill("an unusual phrase")
    page.get_by_role("button", name="Create account").click()


def test_an_example_of_the_empty_account_goes_into_the_box(site: Site) -> None:
    alice = site.person()
    example = alice.card.locator("[data-example]").first
    example.click()
    expect(alice.box).to_have_value((example.text_content() or "").strip())
    expect(alice.box).to_be_focused()
    expect(alice.send_button).to_be_enabled()
