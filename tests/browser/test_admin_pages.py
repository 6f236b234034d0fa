"""The admin in a browser: no page breaks the content security policy, and each fits a telephone."""

import pytest
from playwright.sync_api import expect

from slots.models import PastLease, Server, Slot
from tests import factories
from tests.browser.chat import soon
from tests.browser.site import NARROW, WIDE, Site, overflows

pytestmark = pytest.mark.django_db(transaction=True)

LISTS = (
    "slots/server", "slots/slot", "slots/park", "slots/pastlease", "accounts/user", "accounts/invite",
    "conversations/conversation",
)  # fmt: skip


def test_every_page_of_the_admin_keeps_the_policy_and_fits_a_telephone(site: Site) -> None:
    site.worker()
    alice = site.person().say("Hello")
    alice.is_answered()
    alice.say("And again [[tokens=500 rate=8]]").begins_to_answer()
    bob = factories.person("bob")
    asked = factories.sent(factories.conversation(bob))
    admin = site.administrator()
    server, slot = Server.objects.get(), Slot.objects.get(phase="busy")
    park = factories.parked(server, asked.message.conversation_id)
    pages = [
        "", *(f"{model}/" for model in LISTS), "slots/server/add/", "accounts/user/add/",
        f"slots/server/{server.pk}/change/", f"slots/slot/{slot.pk}/change/",
        f"slots/park/{park.pk}/change/",
        f"slots/pastlease/{PastLease.objects.latest('pk').pk}/change/",
        f"accounts/user/{bob.pk}/change/", f"accounts/user/{bob.pk}/delete/",
        f"conversations/conversation/{asked.message.conversation_id}/change/",
        f"conversations/conversation/{asked.message.conversation_id}/history/",
        f"conversations/conversation/{asked.message.conversation_id}/delete/",
    ]  # fmt: skip
    too_wide = []
    for path in pages:
        answer = admin.page.goto(f"{site.origin}/admin/{path}")
        assert answer
        assert answer.ok, path
        for size in (WIDE, NARROW):
            admin.page.set_viewport_size(size)
            too_wide += overflows(admin.page)
    assert not too_wide


def test_somebody_without_rights_is_told_so(site: Site) -> None:
    alice = site.person()
    alice.watch.expect("status of 403")
    alice.page.goto(f"{site.origin}/admin/")
    expect(alice.page.get_by_role("heading", level=1)).to_be_visible()
    expect(alice.page.get_by_label("Password")).to_have_count(0)


def test_an_answer_that_is_evicted_while_it_runs_loses_nothing(site: Site) -> None:
    site.worker()
    alice = site.person().say("A story [[tokens=400 rate=20]]").begins_to_answer()
    slot = soon(lambda: Slot.objects.filter(phase="busy").first())
    assert slot
    admin = site.administrator(f"/admin/slots/slot/{slot.pk}/change/")
    admin.page.get_by_role("link", name="Evict").click()
    admin.page.get_by_role("button", name="Evict").click()
    expect(admin.page.get_by_text("Evicted:")).to_be_visible()
    alice.is_answered(timeout=90)
