"""What answers are made with is set in a dialog, kept through a reload, and saved as a preset."""

import re

import pytest
from playwright.sync_api import Locator, expect

from conversations.models import Conversation, Preset
from slots.models import Server
from tests import factories
from tests.browser.chat import Chat, soon
from tests.browser.site import NARROW, Site, overflows
from tests.fake_llama import Script

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.parametrize("host", ["127.0.0.1"])]


def settings_of(chat: Chat) -> Locator:
    chat.page.get_by_label("This conversation", exact=True).click()
    chat.page.get_by_role("button", name="Settings").click()
    dialog = chat.page.get_by_role("dialog", name="Settings of this conversation")
    expect(dialog.get_by_label("System prompt")).to_be_focused()
    return dialog


def test_settings_are_checked_kept_through_a_reload_and_are_those_of_the_next_answer(site: Site) -> None:
    site.worker()
    alice = site.person()
    dialog = settings_of(alice)
    dialog.get_by_label("System prompt").fill("Be brief.")
    dialog.get_by_label("Temperature").fill("3,5")
    dialog.get_by_label("Seed").fill("any")
    dialog.get_by_label("Stop at").fill("END\n\\n\\n")
    alice.watch.expect("status of 400")
    dialog.get_by_role("button", name="Save", exact=True).click()
    expect(dialog.get_by_label("Temperature")).to_be_focused()
    expect(dialog.get_by_label("Temperature")).to_have_accessible_description(
        re.compile(r"^temperature is 3.5: it may be from 0 to 2. How freely .* From 0 to 2.$")
    )
    expect(dialog).to_contain_text("seed is “any”: it must be a whole number from 0 to 4,294,967,294.")
    expect(dialog.get_by_label("Temperature")).to_have_value("3,5")
    assert not Conversation.objects.exists()
    dialog.get_by_label("Temperature").fill("0.35")
    dialog.get_by_label("Seed").fill("")
    dialog.get_by_label("Seed").press("Enter")
    expect(dialog).to_be_hidden()
    alice.say("Go on for long. [[tokens=500 rate=8]]").begins_to_answer()
    alice.page.reload()
    alice.begins_to_answer(10)
    dialog = settings_of(alice)
    for label, value in (("System prompt", "Be brief."), ("Temperature", "0.35"), ("Stop at", "END\n\\n\\n")):
        expect(dialog.get_by_label(label)).to_have_value(value)
    expect(dialog.get_by_label("Thinking")).to_be_hidden()
    dialog.get_by_label("System prompt").fill("Be verbose.")
    dialog.get_by_role("button", name="Save", exact=True).click()
    expect(dialog).to_be_hidden()
    alice.stop_button.click()
    alice.is_answered("cancelled")
    alice.say("And now?").is_answered()
    # Who types has the prompt read ahead, for one token that is dropped.
    asked = [record.body for record in site.llama.requests if not record.raw]
    first, second = (body for body in asked if body["max_tokens"] != 1)
    assert [body["messages"][0]["content"] for body in (first, second)] == ["Be brief.", "Be verbose."]
    assert first["temperature"] == second["temperature"] == 0.35
    assert second["stop"] == ["END", "\n\n"]
    dialog = settings_of(alice)
    dialog.get_by_label("System prompt").fill("Be brief.")
    expect(dialog).to_contain_text("With this the model reads the conversation again before it answers:")
    alice.page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert alice.conversation.system_prompt == "Be verbose."


def test_a_preset_is_saved_and_chosen_for_a_new_conversation_on_a_telephone(site: Site) -> None:
    site.of_slots(4, thinking_switch=True).worker()
    soon(lambda: Server.objects.filter(state="ready").exists())
    Preset.objects.create(owner=factories.person("root"), name="House", system_prompt="Be kind.", for_everybody=True)
    alice = site.person(viewport=NARROW, has_touch=True)
    dialog = settings_of(alice)
    dialog.get_by_label("System prompt").fill("Talk like a pirate.")
    dialog.get_by_label("Thinking").select_option("off")
    assert not overflows(alice.page)
    dialog.get_by_text("Save as a preset").click()
    dialog.get_by_label("Name").fill("Pirate")
    dialog.get_by_role("button", name="Save preset").click()
    expect(dialog).to_contain_text("Saved as the preset “Pirate”.")
    dialog.get_by_role("button", name="Cancel").click()
    chooser = alice.page.get_by_label("Preset", exact=True)
    chooser.select_option("Pirate")
    alice.page.reload()
    expect(chooser.locator("option:checked")).to_have_text("Pirate")
    assert not overflows(alice.page)
    alice.box.fill("Hello")
    alice.send_button.click()
    alice.is_answered()
    assert (alice.conversation.system_prompt, alice.conversation.params) == ("Talk like a pirate.", {"thinking": "off"})
    assert site.llama.requests[-1].body["chat_template_kwargs"] == {"enable_thinking": False}
    dialog = settings_of(alice)
    dialog.get_by_label("Fill in from a preset").select_option("House")
    expect(dialog.get_by_label("System prompt")).to_have_value("Be kind.")
    expect(dialog.get_by_role("button", name="Delete this preset")).to_be_hidden()
    dialog.get_by_label("Fill in from a preset").select_option("Pirate")
    dialog.get_by_role("button", name="Delete this preset").click()
    expect(dialog).to_contain_text("The preset “Pirate” was deleted.")
    assert [preset.name for preset in Preset.objects.all()] == ["House"]


def test_thoughts_are_folded_timed_and_kept_out_of_copies(site: Site) -> None:
    site.llama.script(Script(text="Four, surely.", reasoning="Two and two. " * 8, rate=40))
    site.worker()
    alice = site.person()
    alice.context.grant_permissions(["clipboard-read", "clipboard-write"])
    alice.say("2 + 2?")
    expect(alice.answer.get_by_text("Thinking…")).to_be_visible()
    expect(alice.progress).to_be_hidden()
    alice.is_answered()
    over = alice.answer.get_by_text(re.compile(r"^Thought for (a moment|\d s)$"))
    expect(over).to_be_visible()
    expect(alice.answer.get_by_text("Two and two.")).to_be_hidden()
    over.click()
    expect(alice.answer.get_by_text("Two and two.")).to_be_visible()
    alice.answer.get_by_role("button", name="Copy").click()
    expect(alice.answer.get_by_role("button", name="Copied")).to_be_visible()
    assert alice.page.evaluate("navigator.clipboard.readText()") == "Four, surely."
    alice.answer.get_by_text(re.compile(r"tokens · .* tokens/s")).click()
    expect(alice.answer.get_by_text("the server's defaults")).to_be_visible()
    alice.page.reload()
    expect(alice.answer.get_by_text("Two and two.")).to_be_hidden()
    expect(over).to_be_visible()
