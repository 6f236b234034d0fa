"""Parts that die, networks that fail, sessions that end: the page comes back by itself and nothing typed is lost."""

import json
import re
import uuid
from functools import partial

import pytest
from playwright.sync_api import WebSocketRoute, expect

from chatbackend.accounts.sessions import end_all
from conversations.models import Message
from tests import factories
from tests.answers import ended
from tests.browser.site import Site
from tests.fake_llama import Script, default_answer
from tests.proxies import impatient, without_upgrades
from tests.web import LAN_NAME

pytestmark = pytest.mark.django_db(transaction=True)

LONG = "Tell me a long story. [[tokens=120 rate=12]]"
STORY = default_answer(LONG, 120)
AWAY = (r"WebSocket connection to .+ failed", r"net::ERR_(INTERNET_DISCONNECTED|CONNECTION_\w+|NETWORK_\w+)")


def test_the_worker_killed_in_the_middle_of_an_answer(site: Site) -> None:
    worker = site.worker()
    alice = site.person().say(LONG).begins_to_answer()
    worker.kill()
    expect(alice.answer).to_have_attribute("data-status", "running")
    site.worker()
    assert alice.is_answered() == STORY
    assert len(site.llama.requests) == 1


def test_the_web_process_killed_in_the_middle_of_an_answer(site: Site) -> None:
    kill = site.own_web()
    site.worker()
    alice = site.person().say(LONG).begins_to_answer()
    alice.watch.expect(*AWAY)
    kill()
    expect(alice.answer).to_have_attribute("data-status", "running")
    assert alice.is_answered() == STORY
    alice.connected()
    alice.say("And then? [[text='Nothing.']]")
    expect(alice.text).to_have_text("Nothing.")


def test_a_proxy_that_lets_no_websocket_through(site: Site) -> None:
    """Server-sent events stand in for it: everything is as it is with one."""
    site.worker()
    alice = site.behind(without_upgrades).person().connected()
    alice.watch.expect(*AWAY, "401", "404")
    alice.say(LONG).begins_to_answer()
    other = site.tab().open(alice.page.url.removeprefix(alice.origin)).begins_to_answer()
    assert alice.is_answered() == other.is_answered() == STORY
    other.say("Go on for ever. [[tokens=500 rate=8]]")
    alice.begins_to_answer().stop_button.click()
    for tab in (alice, other):
        expect(tab.answer).to_have_attribute("data-status", "cancelled")
    alice.page.reload()
    alice.connected()
    alice.say("And then? [[text='Nothing.']]")
    expect(other.text).to_have_text("Nothing.")
    alice.page.goto(f"{alice.origin}/c/{uuid.uuid4()}/")
    expect(alice.page.get_by_role("alert")).to_contain_text("There is no such conversation")
    alice.connected().say("Again? [[text='Here.']]")
    expect(alice.text).to_have_text("Here.")
    end_all(factories.person("alice"))
    expect(other.page).to_have_url(re.compile("/sign-in/"))


def test_a_proxy_that_cuts_what_is_idle_while_a_long_prompt_is_read(site: Site) -> None:
    cut: list[bytes] = []
    site.of_slots(1, batch=4096).worker(LLAMA_SILENCE="30")
    alice = site.behind(partial(impatient, seconds=5, cut=cut)).person().connected()
    alice.say("[[prefill=160 text='Read.']] " + "word " * 1500)  # nothing comes of that for almost ten seconds
    expect(alice.text).to_have_text("Read.")
    assert not [asked for asked in cut if asked.startswith(b"GET /ws/")]


def test_a_site_that_is_silent_is_said_and_what_is_sent_meanwhile_arrives_once(site: Site) -> None:
    """As a network that swallows everything: nobody closes the connection."""
    site.own_web()
    site.worker()
    alice = site.person().say("Hello [[text='Hi.']]")
    alice.is_answered()
    alice.watch.expect(*AWAY)
    site.web.process.pause()
    alice.say("Into the void [[text='Back.']]")
    expect(alice.questions.last).to_contain_text("Sending")
    alice.box.fill("the next one")
    expect(alice.page.get_by_role("status").filter(has_text="Reconnecting…")).to_be_visible()
    site.web.process.resume()
    expect(alice.text).to_have_text("Back.")
    alice.connected()
    expect(alice.box).to_have_value("the next one")
    expect(alice.questions).to_have_count(2)
    assert Message.objects.filter(text__startswith="Into the void").count() == 1


def test_offline_and_online_again(site: Site) -> None:
    site.worker()
    alice = site.person().say("Hello [[text='Hi.']]")
    alice.is_answered()
    alice.watch.expect(*AWAY)
    alice.context.set_offline(True)
    alice.say("On the train [[text='Out of the tunnel.']]")
    alice.box.fill("half a thou")
    alice.context.set_offline(False)
    expect(alice.text).to_have_text("Out of the tunnel.")
    expect(alice.box).to_have_value("half a thou")
    expect(alice.questions).to_have_count(2)
    assert Message.objects.filter(role="user").count() == 2


@pytest.mark.parametrize("host", [LAN_NAME])
def test_a_tab_that_missed_what_another_device_said_shows_that_first(site: Site) -> None:
    site.worker()
    alice = site.person().say("Hello [[text='Hi.']]")
    alice.is_answered()
    deaf = [False]

    def passes_on(socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()

        def hears(words: str | bytes) -> None:
            kind = json.loads(words)["type"]
            deaf[0] = deaf[0] and kind != "error"
            if not (deaf[0] and kind.startswith(("message.", "generation.", "snapshot"))):
                socket.send(words)

        server.on_message(hears)

    alice.page.route_web_socket("**/ws/", passes_on)
    alice.page.reload()
    alice.connected()
    expect(alice.text).to_have_text("Hi.")
    deaf[0] = True
    ended(factories.sent(alice.conversation, "From the telephone [[text='Heard.']]"))
    alice.say("And here? [[text='Here too.']]")
    expect(alice.page.get_by_role("alert")).to_contain_text("went on meanwhile")
    expect(alice.box).to_have_value("And here? [[text='Here too.']]")
    expect(alice.text).to_have_text("Heard.")
    alice.send_button.click()
    expect(alice.text).to_have_text("Here too.")
    expect(alice.questions).to_have_count(3)


def test_a_failed_answer_says_so_and_retry_answers(site: Site) -> None:
    site.llama.script(Script(text="At last."))
    site.llama.script(Script(fault="400", times=1))
    site.worker()
    alice = site.person().say("Try hard")
    expect(alice.answer).to_have_attribute("data-status", "failed")
    problem = alice.answer.locator(".notice.error")
    expect(problem).to_have_text(re.compile(r"\w.+\."))
    problem.get_by_role("button", name="Retry").click()
    expect(alice.text).to_have_text("At last.")
    alice.is_answered()
    expect(alice.messages.locator("article")).to_have_count(2)
    expect(alice.page.locator(".notice.error:visible")).to_have_count(0)


def test_a_draft_survives_a_reload_and_belongs_to_its_conversation(site: Site) -> None:
    where = factories.sent(words="With a draft").message.conversation_id
    alice = site.person(path=f"/c/{where}/")
    alice.box.fill("not yet\nfinished")
    alice.page.reload()
    expect(alice.box).to_have_value("not yet\nfinished")
    alice.page.get_by_role("link", name="New chat").click()
    expect(alice.box).to_have_value("")
    alice.box.fill("another")
    alice.conversations.get_by_role("link", name="With a draft").click()
    expect(alice.box).to_have_value("not yet\nfinished")
    alice.page.get_by_role("link", name="New chat").click()
    expect(alice.box).to_have_value("another")


def test_signed_out_from_elsewhere_and_the_draft_is_there_afterwards(site: Site) -> None:
    where = factories.sent(words="Here").message.conversation_id
    alice = site.person(path=f"/c/{where}/")
    alice.watch.expect("status of 401")
    alice.box.fill("I was about to say")
    phone = site.visitor("phone")
    phone.page.goto(f"{site.origin}/sign-in/?next=/account/")
    phone.signs_in("alice")
    phone.page.get_by_role("button", name="Sign out everywhere else").click()
    expect(alice.page).to_have_url(re.compile("/sign-in/"))
    alice.signs_in("alice")
    expect(alice.page).to_have_url(f"{site.origin}/c/{where}/")
    expect(alice.connected().box).to_have_value("I was about to say")
