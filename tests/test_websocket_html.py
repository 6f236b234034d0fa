"""Answers as HTML over `/ws/` and REST, from the real web process; a worker is played by rows and published events."""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from conversations import events, frames, rendering, turns
from conversations.claims import Claim
from conversations.models import Conversation, Generation, Message
from conversations.rendering import render
from tests import factories, outages, worker
from tests.eventually import eventually
from tests.web import Frame, Person, Tab

pytestmark = pytest.mark.django_db(transaction=True)

CODE = "# Steam\n\n```python\nx = 1\n```\n"


class Reader:
    """A tab that shows one answer as HTML: it applies frames as `docs/protocol.md` says."""

    def __init__(self, tab: Tab, claim: Claim) -> None:
        self.tab, self.claim = tab, claim
        self.blocks: list[str] = []
        self.final = False
        self.frames: list[Frame] = []  # message.html

    def subscribe(self) -> "Reader":
        self.tab.send("subscribe", conversation=str(self.claim.conversation), html=True)
        self.until(lambda frame: frame["type"] == "snapshot")
        return self

    def next(self, timeout: float = 10) -> Frame:
        frame = self.tab.next(timeout)
        if frame["type"] == "snapshot":
            self.blocks, self.final = frame["messages"][-1]["html"], False
        elif frame["type"] == "message.html" and frame["message"] == str(self.claim.message):
            assert frame["generation"] == str(self.claim.generation)
            assert frame["keep"] <= len(self.blocks)
            assert frame["seq"] <= self.tab.seq[frame["generation"]], "ahead of the events"
            assert not self.final, "something after the last"
            self.blocks = [*self.blocks[: frame["keep"]], *frame["blocks"]]
            self.final = frame["final"]
            self.frames.append(frame)
        return frame

    def until(self, found: Callable[[Frame], object]) -> Frame:
        while not found(frame := self.next()):
            pass
        return frame

    def until_shown(self, text: str, final: bool = False) -> None:
        """Until it shows this text, as it must be rendered."""
        wanted = render(text, final)
        while self.blocks != wanted or self.final != final:
            self.next()


@contextmanager
def reading(person: Person, claim: Claim) -> Iterator[Reader]:
    with person.tab() as tab:
        yield Reader(tab, claim).subscribe()


def stored(claim: Claim) -> object:
    return Message.objects.values_list("html", flat=True).get(pk=claim.message)


def test_an_answer_is_shown_as_html_from_its_first_words_to_its_end(alice: Person) -> None:
    claim = factories.running()
    with reading(alice, claim) as reader:
        assert reader.blocks == []
        text = ""
        for piece in ("# Ste", "am\n\n```py", "thon\nx =", " 1\n```\n"):
            text += piece
            worker.publish(claim, piece)
            reader.until_shown(text)
        assert stored(claim) is None, "what is still written is not stored"
        worker.finish(claim)
        reader.until_shown(CODE, final=True)
    assert reader.frames[-1]["keep"] == 1, "the heading stayed"
    assert "md-number" in "".join(reader.blocks), "code has its colours at the end"
    assert stored(claim) == reader.blocks


def test_html_comes_at_most_ten_times_a_second_and_is_never_ahead(alice: Person) -> None:
    claim = factories.running()
    with reading(alice, claim) as reader:
        began = time.monotonic()
        for number in range(200):
            worker.publish(claim, f"word{number} ")
        worker.finish(claim)
        reader.until(lambda frame: frame.get("final"))
        took = time.monotonic() - began
    assert reader.blocks == render(worker.look(claim).text, final=True)
    assert [frame["type"] for frame in reader.tab.frames].count("generation.delta") == 200, (
        "every event comes all the same"
    )
    assert [frame["final"] for frame in reader.frames].count(True) == 1
    assert len(reader.frames) <= 10 * took + 3


def test_a_page_that_comes_in_the_middle_gets_the_html_so_far_and_goes_on(alice: Person) -> None:
    claim = factories.running()
    worker.publish(claim, "First.\n\n", "Sec")
    with reading(alice, claim) as reader:
        assert reader.blocks == ["<p>First.</p>", "<p>Sec</p>"]
        worker.publish(claim, "ond.")
        reader.until_shown("First.\n\nSecond.")
        assert [frame["keep"] for frame in reader.frames] == [1]


def test_two_tabs_show_the_same(alice: Person) -> None:
    claim = factories.running()
    with reading(alice, claim) as one, reading(alice, claim) as other:
        worker.publish(claim, CODE)
        worker.finish(claim)
        one.until_shown(CODE, final=True)
        other.until_shown(CODE, final=True)


def test_who_does_not_ask_for_html_sees_no_change(alice: Person) -> None:
    claim = factories.running()
    where = Conversation.objects.get(pk=claim.conversation)
    with alice.tab(where) as tab:
        worker.publish(claim, CODE)
        worker.finish(claim)
        tab.until("generation.done")
        assert tab.quiet(1)
        tab.send("subscribe", conversation=str(where.pk), html=False)
        tab.expect("snapshot")
    assert "html" not in {key for frame in tab.frames for message in frame.get("messages", ()) for key in message}
    assert "message.html" not in {frame["type"] for frame in tab.frames}


def test_subscribing_again_without_html_ends_it(alice: Person) -> None:
    claim = factories.running()
    with reading(alice, claim) as reader:
        reader.tab.send("subscribe", conversation=str(claim.conversation))
        reader.tab.expect("snapshot")
        worker.publish(claim, "x")
        reader.tab.expect("generation.delta")
        assert reader.tab.quiet(0.6)


def test_unsubscribing_ends_it(alice: Person) -> None:
    claim = factories.running()
    with reading(alice, claim) as reader:
        reader.tab.send("unsubscribe", conversation=str(claim.conversation))
        assert reader.tab.answers()
        worker.publish(claim, "x")
        worker.finish(claim)
        assert reader.tab.quiet(0.6)


def test_deleting_the_conversation_ends_it(alice: Person) -> None:
    claim = factories.running()
    with reading(alice, claim) as reader:
        worker.publish(claim, "x")
        reader.until_shown("x")
        worker.publish(claim, "y")
        alice.delete(f"conversations/{claim.conversation}/")
        reader.until(lambda frame: frame["type"] == "conversation.deleted")
        assert reader.tab.quiet(0.6)
        assert reader.tab.answers()


def test_html_is_true_or_false(alice: Person) -> None:
    where = factories.conversation(factories.person("alice"))
    with alice.tab() as tab:
        tab.send("subscribe", conversation=str(where.pk), html="true")
        assert "html: This must be true or false" in tab.error()["detail"]


def test_a_turn_that_is_sent_from_the_page_is_shown_as_html(alice: Person) -> None:
    factories.server()
    where = factories.conversation(factories.person("alice"))
    with alice.tab() as tab:
        tab.send("subscribe", conversation=str(where.pk), html=True)
        tab.expect("snapshot")
        tab.say(where, "*Hello*")
        tab.expect("message.created")
        reader = Reader(tab, worker.claimed())
        worker.publish(reader.claim, "*Hi*")
        reader.until_shown("*Hi*")
        worker.finish(reader.claim)
        reader.until_shown("*Hi*", final=True)
        tab.send("subscribe", conversation=str(where.pk), html=True)
        shown = reader.until(lambda frame: frame["type"] == "snapshot")
    assert [message["html"] for message in shown["messages"]] == [None, ["<p><em>Hi</em></p>"]]


def test_a_send_that_is_repeated_brings_the_html_too(alice: Person) -> None:
    factories.server()
    where = factories.conversation(factories.person("alice"))
    same = {"conversation": str(where.pk), "client_id": str(uuid.uuid4()), "text": "Once", "parent": None}
    with alice.tab() as tab:
        tab.send("send", **same)
        tab.until("message.created")
    claim = worker.claimed()
    worker.publish(claim, "*So far*")
    with reading(alice, claim) as reader:
        reader.tab.send("send", **same)
        reader.until(lambda frame: frame["type"] == "message.created")
        reader.blocks = []  # the frame has none, so the page begins anew
        reader.until_shown("*So far*")


def test_a_hole_is_filled_with_html(alice: Person) -> None:
    claim = factories.running()
    with reading(alice, claim) as reader:
        factories.wrote(claim, "never ", "sent, ")
        worker.publish(claim, "*then*")
        reader.until_shown("never sent, *then*")
        worker.publish(claim, " on")
        reader.until_shown("never sent, *then* on")


def test_an_answer_whose_end_was_lost_is_shown_final(alice: Person) -> None:
    claim = factories.running()
    worker.publish(claim, CODE)
    with reading(alice, claim) as reader:
        turns.finish(claim, turns.Ending(Generation.Status.DONE))
        reader.until(lambda frame: frame["type"] == "snapshot")
        assert reader.blocks == render(CODE, final=True)


def test_the_last_html_waits_for_a_database_that_is_away(alice: Person) -> None:
    claim = factories.running()
    with reading(alice, claim) as reader:
        worker.publish(claim, CODE)
        reader.until_shown(CODE)
        turns.finish(claim, turns.Ending(Generation.Status.DONE))
        end = frames.ended(worker.look(claim))
        with outages.no_postgres():
            events.publish(claim.conversation, end)
            reader.until(lambda frame: frame["type"] == "generation.done")
            assert reader.tab.quiet(1), "it cannot be stored yet"
        reader.until_shown(CODE, final=True)


def test_stored_html_is_used_as_long_as_its_renderer_is_the_present_one(alice: Person) -> None:
    claim = factories.running()
    worker.publish(claim, CODE)
    worker.finish(claim)
    row = Message.objects.filter(pk=claim.message)
    row.update(html=["<p>stored</p>"], html_version=rendering.VERSION)
    with reading(alice, claim) as reader:
        assert reader.blocks == ["<p>stored</p>"]
    row.update(html_version=rendering.VERSION - 1)
    with reading(alice, claim) as reader:
        assert reader.blocks == render(CODE, final=True)
    eventually(lambda: stored(claim) == reader.blocks, what="the newer HTML to be stored")


def test_a_page_of_messages_has_html_when_asked(alice: Person) -> None:
    claim = factories.running()
    worker.publish(claim, CODE)
    path = f"conversations/{claim.conversation}/messages/"
    asked, plain = alice.get(f"{path}?html=true").json()["results"], alice.get(path).json()["results"]
    assert [message.pop("html") for message in asked] == [None, render(CODE, final=False)]
    assert asked == plain
    assert alice.get(f"{path}?html=false").json()["results"] == plain
    worker.finish(claim)
    assert alice.get(f"{path}?html=true").json()["results"][1]["html"] == render(CODE, final=True) == stored(claim)
    page = alice.get(f"{path}?html=true&limit=1").json()
    assert "html=true" in page["next"], "the page before it has HTML as well"
    refused = alice.get(f"{path}?html=yes")
    assert (refused.status_code, refused.json()["detail"]) == (400, "html must be true or false.")


def test_html_is_of_ones_own_messages_only(alice: Person, bob: Person) -> None:
    claim = factories.running()
    worker.publish(claim, "Secret")
    assert bob.get(f"conversations/{claim.conversation}/messages/?html=true").status_code == 404
    with bob.tab() as tab:
        tab.send("subscribe", conversation=str(claim.conversation), html=True)
        assert tab.error()["code"] == "not_found"
        worker.publish(claim, "Secret")
        assert tab.quiet(0.6)
