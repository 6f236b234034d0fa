"""Keeping conversations in sight or out of it, on every device, by keyboard and on a small screen."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.chat import Chat, soon
from tests.browser.site import NARROW, Site, overflows
from tests.browser.test_search import searches, talk
from tests.test_importing_llama_ui import whole

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.parametrize("host", ["127.0.0.1"])]


def chooses(chat: Chat, name: str) -> None:
    """An item of the open conversation's menu, without a mouse."""
    chat.page.get_by_label("This conversation", exact=True).focus()
    chat.page.keyboard.press("Enter")
    chat.page.get_by_role("button", name=name, exact=True).focus()
    chat.page.keyboard.press("Enter")


def listed(chat: Chat) -> Locator:
    return chat.conversations.locator("#conversations").get_by_role("link")


def test_what_is_pinned_archived_and_deleted_on_one_device_is_so_on_the_other(site: Site) -> None:
    first, second, _ = (talk(title, "Of steam", "Yes.") for title in ("First", "Second", "Third"))
    alice = site.person(path=f"/c/{first.pk}/")
    phone = site.person("alice", path=f"/c/{second.pk}/", viewport=NARROW)
    phone.page.get_by_role("button", name="Conversations").click()
    expect(listed(phone)).to_have_text(["Third", "Second", "First"])
    chooses(alice, "Pin")
    for chat in (alice, phone):
        expect(listed(chat)).to_have_text(["First (pinned)", "Third", "Second"])
    chooses(alice, "Archive")
    expect(alice.page.locator("#in-archive")).to_be_visible()
    expect(listed(phone)).to_have_text(["Third", "Second"])
    phone.conversations.get_by_text("Archived", exact=True).click()
    expect(phone.conversations.locator("#archived").get_by_role("link")).to_have_text(["First (pinned)"])
    assert not overflows(phone.page)
    searches(alice, "steam")
    expect(alice.conversations.get_by_role("link", name="First")).to_contain_text("Archived")
    searches(alice, "")
    chooses(alice, "Unarchive")
    expect(listed(phone)).to_have_text(["First (pinned)", "Third", "Second"])
    phone.page.keyboard.press("Escape")

    chooses(phone, "Delete")
    expect(phone.page).to_have_url(f"{site.origin}/")
    expect(listed(alice)).to_have_count(2)
    toast = phone.page.locator(".toast")
    expect(toast).to_contain_text("Deleted “Second”")
    assert not overflows(phone.page)
    toast.get_by_role("button", name="Undo").focus()
    phone.page.keyboard.press("Enter")
    expect(phone.page).to_have_url(re.compile(str(second.pk)))
    expect(phone.messages.locator("article")).to_have_count(2)
    expect(listed(alice)).to_have_text(["First (pinned)", "Third", "Second"])
    expect(toast).to_be_hidden()


def test_conversations_leave_and_come_as_files(site: Site, tmp_path: Path) -> None:
    where = talk("Of steam: 1/2", "How?", "So.")
    alice = site.person(path=f"/c/{where.pk}/", viewport=NARROW)
    page = alice.page
    page.get_by_label("This conversation", exact=True).click()
    with page.expect_download() as download:
        page.get_by_role("link", name="Export as Markdown").click()
    assert download.value.suggested_filename == "Of steam 1 2.md"
    assert "## You" in Path(download.value.path()).read_text()

    page.goto(f"{site.origin}/account/")
    with page.expect_download() as download:
        page.get_by_role("link", name="Export all").click()
    assert json.loads(Path(download.value.path()).read_text())["conversations"][0]["title"] == where.title

    broken, good = tmp_path / "broken.json", tmp_path / "conversations"
    broken.write_text(json.dumps([{**whole(), "conv": {}}]))
    good.write_text(json.dumps([whole()]))
    said = page.locator("#import-result")
    alice.watch.expect("status of 400")
    page.get_by_label("Import a file").set_input_files(broken)
    page.get_by_role("button", name="Import", exact=True).click()
    expect(said).to_have_text("conversation 1, `conv`: `lastModified` is missing. Nothing was imported.")
    page.get_by_label("Import a file").set_input_files(good)
    page.get_by_role("button", name="Import", exact=True).click()
    expect(said).to_have_text("1 conversation was imported.")
    assert not overflows(page)
    page.get_by_role("link", name="Back to the chat").click()
    alice.connected()
    page.get_by_role("button", name="Conversations").click()
    alice.conversations.get_by_role("link", name="Trains").click()
    expect(alice.messages.get_by_text("Attachment “engine.png”: kept")).to_be_visible()
    expect(alice.text).to_have_text("Stephenson.")
    soon(lambda: page.locator("body").get_attribute("data-drawer") == "closed")
    assert not overflows(page)
