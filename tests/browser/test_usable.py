"""For everybody: without a mouse, on a small screen, with the browser's own buttons, and when copying."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, expect

from chatbackend.accounts import invites, links, sign_in_links
from conversations.models import Conversation, Message
from tests import factories
from tests.browser.chat import Chat
from tests.browser.site import NARROW, Site, everywhere, overflows
from tests.fake_llama import Script, default_answer

pytestmark = pytest.mark.django_db(transaction=True)

WIDE_TEXT = f"""A table, a long line of code, a long word and a formula:

| {" | ".join(f"column {n}" for n in range(12))} |
|{"---|" * 12}
| {" | ".join("something long" for _ in range(12))} |

```python
{"a_long_name = " * 30}1
```

{"unbreakable" * 30} and https://example.org/{"path/" * 40}

$$ {" + ".join(f"x_{{{n}}}^2" for n in range(40))} $$
"""


def test_everything_by_keyboard(site: Site) -> None:
    site.worker()
    alice = site.person()
    keyboard = alice.page.keyboard
    expect(alice.box).to_be_focused()
    keyboard.type("First line")
    keyboard.press("Shift+Enter")
    keyboard.type("and go on [[tokens=500 rate=8]]")
    expect(alice.box).to_have_value("First line\nand go on [[tokens=500 rate=8]]")
    keyboard.press("Enter")
    alice.begins_to_answer()
    expect(alice.box).to_be_focused()
    tabs_to(alice, "Stop")
    keyboard.press("Enter")
    expect(alice.answer).to_have_attribute("data-status", "cancelled")
    expect(alice.box).to_be_focused()
    keyboard.press("Shift+Tab")
    expect(focused(alice)).to_have_accessible_name(re.compile("tokens"))  # what it cost
    keyboard.press("Shift+Tab")
    expect(focused(alice)).to_have_accessible_name("Regenerate")

    alice.page.get_by_role("link", name="New chat").focus()
    tabs_to(alice, "alice")
    keyboard.press("Enter")
    expect(alice.page.get_by_role("button", name="Sign out")).to_be_visible()
    keyboard.press("Escape")
    expect(alice.page.get_by_role("button", name="Sign out")).to_be_hidden()
    expect(focused(alice)).to_have_accessible_name(re.compile("alice"))


def tabs_to(chat: Chat, name: str) -> None:
    """Tab until what has this name is focused; within twenty steps."""
    for _ in range(20):
        chat.page.keyboard.press("Tab")
        if name in (focused(chat).first.text_content() or ""):
            return
    raise AssertionError(f"{name} is not reached by Tab")


def focused(chat: Chat) -> Locator:
    return chat.page.locator(":focus")


def test_the_skip_link_leads_to_the_box(site: Site) -> None:
    alice = site.person()
    skip = alice.page.get_by_role("link", name="To the message box")
    expect(skip).not_to_be_in_viewport()
    skip.focus()
    expect(skip).to_be_in_viewport(ratio=1)
    alice.page.keyboard.press("Enter")
    expect(alice.box).to_be_focused()


def test_back_and_forward_go_from_one_conversation_to_the_other(site: Site) -> None:
    site.worker()
    first, second = (factories.sent(factories.conversation(), f"{word} [[text='{word}.']]") for word in ("One", "Two"))
    alice = site.person()
    alice.conversations.get_by_role("link", name="One").click()
    expect(alice.text).to_have_text("One.")
    alice.conversations.get_by_role("link", name="Two").click()
    expect(alice.text).to_have_text("Two.")
    expect(alice.page).to_have_url(re.compile(str(second.message.conversation_id)))
    alice.page.go_back()
    expect(alice.page).to_have_url(re.compile(str(first.message.conversation_id)))
    expect(alice.text).to_have_text("One.")
    expect(alice.page).to_have_title(re.compile("^One"))
    alice.page.go_back()
    expect(alice.page).to_have_url(f"{site.origin}/")
    expect(alice.messages.locator("article")).to_have_count(0)
    alice.page.go_forward()
    expect(alice.text).to_have_text("One.")


@everywhere
def test_copy_gives_the_text_as_it_was_written(site: Site) -> None:
    """Also where the browser has no clipboard for pages: what arrives there is pasted into the box."""
    written = "A *list*:\n\n- one & two\n- `three`\n\n```python\nprint('four')\n```\n"
    site.llama.script(Script(text=written))
    site.worker()
    alice = site.person()
    alice.context.grant_permissions(["clipboard-read", "clipboard-write"])
    alice.say("Show me")
    expect(alice.answer).to_have_attribute("data-status", "done")
    code = alice.answer.locator(".code").get_by_role("button", name="Copy")
    code.click()
    assert pasted(alice) == "print('four')\n"
    alice.answer.locator(".actions").get_by_role("button", name="Copy").click()
    assert pasted(alice) == alice.stored.text == written


def pasted(chat: Chat) -> str:
    chat.box.fill("")
    chat.box.press("Control+v")
    expect(chat.box).not_to_have_value("")
    return chat.box.input_value()


def test_the_list_is_a_drawer_on_a_small_screen(site: Site) -> None:
    factories.sent(words="Somewhere else")
    alice = site.person(viewport=NARROW)
    expect(alice.conversations).not_to_be_in_viewport()
    alice.page.get_by_role("button", name="Conversations").click()
    link = alice.conversations.get_by_role("link", name="Somewhere else")
    expect(link).to_be_in_viewport(ratio=1)
    alice.page.keyboard.press("Escape")
    expect(alice.conversations).not_to_be_in_viewport()
    alice.page.get_by_role("button", name="Conversations").click()
    link.click()
    expect(alice.conversations).not_to_be_in_viewport()
    expect(alice.questions).to_have_text(re.compile("Somewhere else"))


def test_enter_makes_a_line_where_there_is_no_keyboard(site: Site) -> None:
    site.worker()
    alice = site.person(viewport=NARROW, has_touch=True, is_mobile=True)
    alice.box.tap()
    alice.page.keyboard.type("One")
    alice.page.keyboard.press("Enter")
    alice.page.keyboard.type("Two")
    expect(alice.box).to_have_value("One\nTwo")
    alice.send_button.tap()
    assert alice.is_answered() == default_answer("One\nTwo")


def test_no_page_scrolls_sideways_at_360_pixels(site: Site) -> None:
    where = factories.conversation(title="A title that is far too long to be shown in one line of a telephone" * 2)
    asked = Message.objects.create(conversation=where, role="user", text=WIDE_TEXT)
    told = Message.objects.create(conversation=where, role="assistant", text=WIDE_TEXT, parent=asked)
    Conversation.objects.filter(pk=where.pk).update(leaf=told)
    alice = site.person(path=f"/c/{where.pk}/", viewport=NARROW)
    expect(alice.text.locator("table")).to_be_attached()
    assert not overflows(alice.page)
    for path in ("/", "/account/", "/invite/", "/sign-out/", "/nowhere/"):
        alice.watch.expect("status of 404")
        alice.page.goto(f"{site.origin}{path}")
        assert not overflows(alice.page)
    nobody = site.visitor(viewport=NARROW)
    nobody.watch.expect("status of 4")
    for path in outside():
        nobody.page.goto(f"{site.origin}{path}")
        assert not overflows(nobody.page)


def outside() -> Iterator[str]:
    """Pages for people who are not signed in."""
    yield from ("/sign-in/", "/sign-up/", "/enter/nonsense/", "/join/nonsense/", "/reset/a/b/", "/c/nonsense/")
    yield f"/join/{invites.create()}/"
    yield links.sign_in_path(sign_in_links.create(factories.person("bob")))
    yield links.reset_path(factories.person("bob"))
