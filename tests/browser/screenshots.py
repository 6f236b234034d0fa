"""Pictures of the pages, to look at: `SCREENSHOTS=/tmp/pages python -m pytest tests/browser/screenshots.py`.

Each page at 360, 768 and 1440 pixels, light and dark. Nothing is compared; it runs as tests do because they have the
whole site at hand.
"""

import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from chatbackend.accounts import invites
from chatbackend.accounts.models import User
from conversations.models import Preset
from slots import parked
from slots.models import Server, Slot
from tests import factories
from tests.browser.chat import Chat, soon
from tests.browser.site import Site
from tests.browser.test_context import turns
from tests.fake_llama import Script

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.parametrize("host", ["127.0.0.1"])]

WIDTHS = {360: 740, 768: 900, 1440: 900}
ANSWER = """A steam engine turns **heat into motion** in three steps:

1. Water boils in a closed vessel.
2. Its steam pushes a piston.
3. A crank makes *rotation* of the strokes.

```python
def work(pressure: float, volume: float) -> float:
    \"\"\"Joules done by one stroke.\"\"\"
    return pressure * volume  # of the cylinder
```

| Engine | Year | Efficiency |
|---|---:|---:|
| Newcomen | 1712 | 0.5 % |
| Watt | 1776 | 3 % |

The work of one stroke is $W = p \\cdot \\Delta V$, see [a longer explanation](https://example.org/steam).
"""


def picture(page: Page, name: str) -> None:
    """The page as it is now, in every size and colour scheme."""
    folder = Path(os.environ["SCREENSHOTS"])
    folder.mkdir(parents=True, exist_ok=True)
    before = page.viewport_size
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width, height in WIDTHS.items():
            page.set_viewport_size({"width": width, "height": height})
            page.screenshot(path=folder / f"{name}-{width}-{scheme}.png", animations="disabled")
    assert before
    page.set_viewport_size(before)


def test_pages_of_nobody(site: Site) -> None:
    site.own_web(SIGNUP="invite")
    nobody = site.visitor()
    nobody.watch.expect("status of 4")
    paths = {
        "sign-in": "/sign-in/", "sign-up": "/sign-up/", "join": f"/join/{invites.create()}/",
        "spent": "/join/nonsense/", "nowhere": "/nowhere/",
    }  # fmt: skip
    for name, path in paths.items():
        nobody.page.goto(f"{site.origin}{path}")
        picture(nobody.page, name)


def test_pages_of_an_account(site: Site) -> None:
    site.worker()
    soon(lambda: Server.objects.filter(state=Server.State.READY).exists())
    alice = site.person()
    picture(alice.page, "empty")
    alice.card.get_by_role("button", name="Invite").click()
    expect(alice.card.locator("#invite-link")).to_be_visible()
    picture(alice.page, "empty-invited")
    for name in ("account", "invite"):
        alice.page.goto(f"{site.origin}/{name}/")
        picture(alice.page, name)


def test_a_conversation(site: Site) -> None:
    site.llama.script(Script(text=ANSWER, rate=400))
    site.worker()
    for number in range(12):
        factories.sent(factories.conversation(), f"An earlier question, number {number} [[text=x]]")
    alice = site.person().say("How does a steam engine work? Show me some code as well.")
    expect(alice.text.locator("math")).to_be_visible()
    picture(alice.page, "answered")
    alice.page.set_viewport_size({"width": 360, "height": 740})
    alice.page.get_by_role("button", name="Conversations").click()
    picture(alice.page, "list")  # which closes where the window is wide: look at the first


def test_settings(site: Site) -> None:
    site.of_slots(4, thinking_switch=True).worker()
    soon(lambda: Server.objects.filter(state="ready").exists())
    for name in ("A pirate", "An editor"):
        Preset.objects.create(owner=factories.person(), name=name, system_prompt=name)
    alice = site.person()
    alice.page.get_by_label("Preset", exact=True).select_option("A pirate")
    picture(alice.page, "new-with-preset")
    alice.say("Hello")
    alice.is_answered()
    alice.page.get_by_label("This conversation", exact=True).click()
    picture(alice.page, "conversation-menu")
    alice.page.get_by_role("button", name="Settings").click()
    dialog = alice.page.get_by_role("dialog", name="Settings of this conversation")
    dialog.get_by_label("System prompt").fill("Talk like a pirate who has read too much.")
    picture(alice.page, "settings")
    dialog.get_by_label("Temperature").fill("3.5")
    dialog.get_by_label("Fill in from a preset").scroll_into_view_if_needed()
    alice.watch.expect("status of 400")
    dialog.get_by_role("button", name="Save", exact=True).click()
    expect(dialog).to_contain_text("it may be from 0 to 2")
    picture(alice.page, "settings-refused")
    dialog.get_by_text("Save as a preset").click()
    dialog.get_by_label("Name").scroll_into_view_if_needed()
    picture(alice.page, "settings-end")


def test_thinking(site: Site) -> None:
    thought = "Two and two are what they are. I should say so, and briefly.\n\nFour, then. " * 3
    site.llama.script(Script(text="Four.", reasoning=thought, rate=30))
    site.worker()
    alice = site.person().say("What is 2 + 2?")
    expect(alice.answer.get_by_text("Thinking…")).to_be_visible()
    picture(alice.page, "thinking")
    alice.is_answered()
    alice.answer.hover()
    picture(alice.page, "thought")
    alice.answer.get_by_text("Thought for").click()
    alice.answer.get_by_text(re.compile(r"tokens · .* tokens/s")).click()
    picture(alice.page, "thought-and-figures")


def test_streaming(site: Site) -> None:
    site.llama.script(Script(text=ANSWER * 3, rate=8))
    site.worker()
    alice = site.person().say("How does a steam engine work?").begins_to_answer(150)
    picture(alice.page, "streaming")


def test_waiting(site: Site) -> None:
    site.of_slots(1).worker()
    site.person("alice").say("Go on for ever [[tokens=500 rate=2]]").begins_to_answer()
    bob, charlie = (ask(site, name) for name in ("bob", "charlie"))
    expect(charlie.progress).to_have_text("Place 2 in the queue")
    picture(charlie.page, "queueing")
    bob.stop_button.click()
    expect(bob.answer).to_have_attribute("data-status", "cancelled")
    picture(bob.page, "stopped")


def ask(site: Site, name: str) -> Chat:
    chat = site.person(name).say("What is the capital of France, and how do I get there by train?")
    expect(chat.progress).to_be_visible()
    return chat


def test_reading(site: Site) -> None:
    site.worker()
    alice = site.person().say(f"[[prefill=20]] {'some words to read ' * 100}")
    expect(alice.progress).to_contain_text("Reading")
    picture(alice.page, "reading")


def test_no_server(site: Site) -> None:
    alice = site.person()
    picture(alice.page, "no-server")
    alice.say("Is anybody there?")
    expect(alice.progress).to_contain_text("Waiting")
    picture(alice.page, "no-server-waiting")


def test_a_server_that_went_away(site: Site) -> None:
    site.llama.script(Script(text=ANSWER, rate=20))
    site.worker()
    alice = site.person().say("How does a steam engine work?").begins_to_answer(300)
    site.llama.stop()
    expect(alice.progress).to_contain_text("The model server went away; your answer goes on when it is back")
    picture(alice.page, "went-away")


def test_prompts_that_keep_conversations_cold(site: Site) -> None:
    site.worker()
    alice = site.person().say("Hello")
    alice.is_answered()
    alice.page.get_by_label("This conversation", exact=True).click()
    alice.page.get_by_role("button", name="Settings").click()
    dialog = alice.page.get_by_role("dialog", name="Settings of this conversation")
    dialog.get_by_label("System prompt").fill("It is {{CURRENT_DATETIME}}, {time}. Be kind.")
    picture(alice.page, "placeholders")
    dialog.get_by_text("Save as a preset").click()
    dialog.get_by_label("Name").fill("House")
    dialog.get_by_role("button", name="Save preset").click()
    expect(dialog).to_contain_text("is sent as written")
    dialog.locator("#preset-done").scroll_into_view_if_needed()
    picture(alice.page, "placeholders-warned-of")
    Preset.objects.update(for_everybody=True)
    User.objects.update(is_staff=True, is_superuser=True)
    for name, path in (("overview", "/admin/"), ("presets", "/admin/conversations/preset/")):
        alice.page.goto(f"{site.origin}{path}")
        picture(alice.page, f"admin-{name}")


def test_cut_short(site: Site) -> None:
    site.llama.script(Script(text=ANSWER, fault="error", after=40))
    site.worker()
    alice = site.person().say("How does a steam engine work? [[tokens=400 rate=40]]").begins_to_answer(200)
    alice.stop_button.click()
    expect(alice.answer.get_by_role("button", name="Continue")).to_be_visible()
    picture(alice.page, "stopped")
    alice.say("And what is its work?")
    expect(alice.answer.get_by_role("alert")).to_be_visible()
    picture(alice.page, "failed-midway")


def test_edits(site: Site) -> None:
    site.worker()
    alice = site.person().say(f"[[prefill=80 text='It was read.']] {'Some words to read. ' * 60}")
    alice.is_answered()
    question = alice.questions.first
    question.hover()
    question.get_by_role("button", name="Edit").click()
    question.get_by_role("textbox").fill("Please read: " + "some words to read. " * 60)
    expect(question.get_by_role("status")).to_contain_text("re-reads")
    picture(alice.page, "edit")
    question.get_by_role("textbox").fill("x" * 200_001)
    question.get_by_role("button", name="Send").click()
    expect(question.get_by_role("alert")).to_be_visible()
    question.get_by_role("textbox").fill("Please read: " + "some words to read. " * 60)
    picture(alice.page, "edit-refused")


def test_failed(site: Site) -> None:
    site.llama.script(Script(fault="400"))
    site.worker()
    alice = site.person().say("Try hard")
    expect(alice.answer).to_have_attribute("data-status", "failed")
    picture(alice.page, "failed")


def test_offline(site: Site) -> None:
    site.own_web()
    alice = site.person()
    alice.watch.expect("WebSocket")
    site.web.process.pause()
    alice.say("Into the void")
    expect(alice.page.get_by_text("Reconnecting…")).to_be_visible()
    picture(alice.page, "offline")
    site.web.process.resume()


def test_a_long_conversation(site: Site) -> None:
    site.of_slots(2, n_ctx=512).worker()
    alice = site.person(path=f"/c/{turns(4).pk}/")
    alice.say("And a longer one: " + "what else is there? " * 30)
    alice.is_answered()
    alice.messages.get_by_role("note").scroll_into_view_if_needed()
    picture(alice.page, "memory")
    alice.say("Read this, please. " * 300)
    expect(alice.page.get_by_text("of 512 tokens")).to_be_visible()
    picture(alice.page, "memory-refused")


def test_admin(site: Site) -> None:
    site.worker()
    alice = site.person().say("Hello")
    alice.is_answered()
    bob = site.person("bob").say("Hello [[tokens=500 rate=4]]").begins_to_answer()
    slot = Slot.objects.get(phase="busy")
    for name, everybody in (("A pirate", True), ("An editor", False)):
        Preset.objects.create(owner=factories.person("root"), name=name, system_prompt=name, for_everybody=everybody)
    server = Server.objects.get()
    for number, of in enumerate((alice.conversation, bob.conversation)):
        factories.parked(server, of.pk, number)
    parked.forget([bob.conversation.pk])
    paths = {
        "admin": "", "admin-servers": "slots/server/", "admin-server": f"slots/server/{slot.server_id}/change/",
        "admin-slots": "slots/slot/", "admin-slot": f"slots/slot/{slot.pk}/change/", "admin-leases": "slots/pastlease/",
        "admin-files": "slots/park/",
        "admin-people": "accounts/user/", "admin-conversations": "conversations/conversation/",
        "admin-person": f"accounts/user/{factories.person('bob').pk}/change/",
        "admin-presets": "conversations/preset/",
        "admin-conversation": f"conversations/conversation/{bob.conversation.pk}/change/",
    }  # fmt: skip
    admin = site.administrator()
    for name, path in paths.items():
        admin.page.goto(f"{site.origin}/admin/{path}")
        picture(admin.page, name)
