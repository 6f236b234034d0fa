"""What people are told while no text comes: their place, how much was read, and why it is read again."""

import re

import pytest
from playwright.sync_api import expect

from conversations.models import Generation
from slots.models import Slot
from tests.browser.chat import soon
from tests.browser.site import Site
from tests.fake_llama import default_answer

pytestmark = pytest.mark.django_db(transaction=True)

ENDLESS = "Go on for ever. [[tokens=500 rate=8]]"


def test_places_in_the_queue_go_down_and_survive_a_reload(site: Site) -> None:
    site.of_slots(1).worker()
    alice = site.person("alice").say(ENDLESS).begins_to_answer()
    bob = site.person("bob").say("Second")
    expect(bob.progress).to_have_text("Place 1 in the queue")
    charlie = site.person("charlie").say("Third")
    expect(charlie.progress).to_have_text("Place 2 in the queue")
    charlie.page.reload()
    expect(charlie.progress).to_have_text("Place 2 in the queue")
    bob.stop_button.click()
    expect(bob.answer).to_have_attribute("data-status", "cancelled")
    expect(bob.send_button).to_be_visible()
    expect(charlie.progress).to_have_text("Place 1 in the queue", timeout=3000)
    alice.stop_button.click()
    assert charlie.is_answered() == default_answer("Third")
    assert [record.asked for record in site.llama.requests] == [ENDLESS, "Third"]


def test_how_long_it_takes_stands_beside_the_place_once_it_can_be_known(site: Site) -> None:
    site.of_slots(1).worker()
    alice = site.person("alice").say("First. [[tokens=40 rate=100]]")
    alice.is_answered()
    alice.say(ENDLESS).begins_to_answer()
    bob = site.person("bob").say("Second")
    expect(bob.progress).to_have_text(re.compile(r"^Place 1 in the queue, about \d+ to \d+ (s|min)$"))


def test_a_long_prompt_is_counted_while_it_is_read(site: Site) -> None:
    site.worker()
    alice = site.person().say(f"[[prefill=150 text='Read.']] {'some words to read ' * 100}")
    expect(alice.progress).to_have_text(re.compile(r"Reading \d+ of \d+"))
    numbers = set()

    def counted() -> bool:
        numbers.add(alice.progress.text_content())
        return len(numbers) > 2

    soon(counted, what="the number to grow")
    assert alice.is_answered() == "Read."
    expect(alice.progress).to_be_hidden()


def test_nothing_can_answer_and_then_it_can(site: Site) -> None:
    site.llama.set(loading=True)
    site.worker()
    alice = site.person().say("Is anybody there?")
    expect(alice.progress).to_have_text(re.compile("^Waiting: .+[^.]$"))
    expect(alice.stop_button).to_be_visible()
    site.llama.set(loading=False)
    assert alice.is_answered() == default_answer("Is anybody there?")


def test_a_place_that_is_taken_away_in_the_admin_is_picked_up_again(site: Site) -> None:
    """Evict an idle lease in the admin; the next message reads the conversation again, and says why."""
    site.own_web()
    site.worker()
    alice = site.person().say("Remember me. [[text='I will.']]")
    assert alice.is_answered() == "I will."
    holder = alice.conversation.pk
    slot = Slot.objects.get(holder=holder)
    admin = site.administrator(f"/admin/slots/slot/{slot.pk}/change/")
    admin.page.get_by_role("link", name="Evict").click()
    admin.page.get_by_role("button", name="Evict").click()
    expect(admin.page.get_by_text("Evicted:")).to_be_visible()
    soon(lambda: not Slot.objects.filter(holder=holder).exists(), what="the slot to be free")
    alice.say("And now? [[text='Of course.']]")
    assert alice.is_answered() == "Of course."
    expect(alice.answer.locator(".note")).to_contain_text("given to somebody else")
    timings = Generation.objects.latest("id").timings
    assert timings
    assert timings["replay_cause"] == "evicted"
