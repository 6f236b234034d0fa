"""The protocol over `/ws/`, against the real web process; a worker is played by rows and published events."""

import uuid

import pytest

from conversations import events, frames, history, turns
from conversations.claims import Claim
from conversations.models import Conversation, Generation
from tests import factories, worker
from tests.web import Person, Tab

pytestmark = pytest.mark.django_db(transaction=True)


def shows(tab: Tab, claim: Claim) -> str:
    return tab.shown[str(claim.generation)]


def test_an_answer_is_shown_from_the_send_to_its_end(alice: Person) -> None:
    where = factories.conversation(factories.person("alice"))
    factories.server()
    with alice.tab(where) as tab:
        tab.say(where, "How do steam engines work?", id="my-frame")
        created = tab.expect("message.created")
        assert created["re"] == "my-frame"
        assert [message["text"] for message in created["messages"]] == ["How do steam engines work?", ""]
        assert tab.until("generation.queued")["place"] == 1
        claim = worker.claimed()
        worker.publish(claim, "Heat ", "makes ", "steam.")
        worker.finish(claim)
        done = tab.until("generation.done")
    assert (done["status"], done["seq"], done["finish_reason"]) == ("done", 4, "stop")
    assert shows(tab, claim) == "Heat makes steam."
    assert shows(tab, claim) == worker.look(claim).text


def test_every_tab_of_the_person_sees_the_same(alice: Person) -> None:
    where = factories.conversation(factories.person("alice"))
    factories.server()
    with alice.tab(where) as tab, alice.tab(where) as other, alice.tab() as elsewhere:
        tab.say(where)
        tab.expect("message.created")
        other.expect("message.created")
        claim = worker.claimed()
        worker.publish(claim, "One ", "answer.")
        worker.finish(claim)
        tab.until("generation.done")
        other.until("generation.done")
        assert shows(tab, claim) == shows(other, claim) == "One answer."
        assert elsewhere.expect("conversation.updated")["conversation"]["id"] == str(where.pk)
        assert elsewhere.quiet()


def test_the_sender_is_told_of_its_message_once_per_socket(alice: Person) -> None:
    where = factories.conversation(factories.person("alice"))
    with alice.tab(where) as tab:
        tab.say(where)
        tab.until("conversation.updated")
        assert tab.answers()
    assert [frame["type"] for frame in tab.frames].count("message.created") == 1


def test_a_reload_in_mid_answer_shows_all_of_it_and_goes_on(alice: Person) -> None:
    claim = factories.running()
    where = Conversation.objects.get(pk=claim.conversation)
    worker.publish(claim, "The first ", "half ")
    with alice.tab(where) as tab:
        assert shows(tab, claim) == "The first half "
        worker.publish(claim, "and the ", "second.")
        worker.finish(claim)
        tab.until("generation.done")
    assert shows(tab, claim) == "The first half and the second."
    assert [frame["type"] for frame in tab.frames].count("snapshot") == 1


def test_events_that_were_sent_before_are_dropped(alice: Person) -> None:
    claim = factories.running()
    where = Conversation.objects.get(pk=claim.conversation)
    factories.wrote(claim, "a", "b")
    with alice.tab(where) as tab:
        for seq, start, text in ((1, 0, "a"), (2, 1, "b")):
            events.publish(where.pk, frames.delta(where.pk, claim.generation, seq, 0, start, text))
        worker.publish(claim, "c")
        assert tab.expect("generation.delta")["text"] == "c"
    assert shows(tab, claim) == "abc"


def test_a_hole_is_filled_by_a_snapshot(alice: Person) -> None:
    claim = factories.running()
    where = Conversation.objects.get(pk=claim.conversation)
    worker.publish(claim, "a")
    with alice.tab(where) as tab:
        factories.wrote(claim, "b", "c")  # two events that never arrive
        worker.publish(claim, "d")
        tab.expect("snapshot")
        assert shows(tab, claim) == "abcd"
        worker.publish(claim, "e")
        tab.expect("generation.delta")
    assert shows(tab, claim) == "abcde"


def test_text_whose_events_are_all_lost_is_found_by_asking(alice: Person) -> None:
    claim = factories.running()
    where = Conversation.objects.get(pk=claim.conversation)
    with alice.tab(where) as tab:
        factories.wrote(claim, "never ", "published")
        tab.until("generation.delta")
        tab.until("generation.delta")
        assert shows(tab, claim) == "never published"


def test_a_last_event_that_is_lost_is_found_by_asking(alice: Person) -> None:
    claim = factories.running()
    where = Conversation.objects.get(pk=claim.conversation)
    worker.publish(claim, "The end")
    with alice.tab(where) as tab:
        turns.finish(claim, turns.Ending(Generation.Status.DONE))
        tab.expect("snapshot", timeout=5)
        assert tab.status[str(claim.generation)] == "done"
        assert tab.quiet(1.5), "what has ended is asked about no more"


def test_ping_tells_what_the_client_lacks_and_what_is_gone(alice: Person) -> None:
    claim = factories.running()
    factories.wrote(claim, "one", "two")
    with alice.tab() as tab:
        missing = str(uuid.uuid4())
        tab.send("ping", known={str(claim.generation): 1, missing: 4}, id=7)
        assert tab.expect("snapshot")["conversation"]["id"] == str(claim.conversation)
        assert tab.expect("pong") == {"type": "pong", "gone": [missing], "re": 7}
        tab.send("ping", known={str(claim.generation): 2})
        assert tab.expect("pong")["gone"] == []


def test_unsubscribing_ends_the_events(alice: Person) -> None:
    claim = factories.running()
    where = Conversation.objects.get(pk=claim.conversation)
    with alice.tab(where) as tab:
        tab.send("unsubscribe", conversation=str(where.pk))
        assert tab.answers()
        worker.publish(claim, "not for you")
        assert tab.quiet(1.5)


def test_cancelling_what_waits_ends_it_at_once_in_every_tab(alice: Person) -> None:
    turn = factories.sent()
    where = turn.generation.conversation
    with alice.tab(where) as tab, alice.tab(where) as other:
        tab.send("cancel", generation=str(turn.generation.pk))
        assert tab.expect("generation.cancelled")["seq"] == 1
        assert other.expect("generation.cancelled")["seq"] == 1
        assert tab.quiet()


def test_cancelling_what_runs_is_a_committed_wish(alice: Person) -> None:
    claim = factories.running()
    with alice.tab() as tab:
        tab.send("cancel", generation=str(claim.generation))
        assert tab.answers()
    assert Generation.objects.get(pk=claim.generation).stop_asked_at


def test_a_send_repeated_after_a_lost_reply_is_answered_again_and_sends_nothing(alice: Person) -> None:
    where = factories.conversation(factories.person("alice"))
    factories.server()
    same = str(uuid.uuid4())
    with alice.tab() as tab:
        tab.send("send", conversation=str(where.pk), client_id=same, text="Once", parent=None)
        first = tab.until("message.created")
        claim = worker.claimed()
        factories.wrote(claim, "so far")
        tab.send("send", conversation=str(where.pk), client_id=same, text="Once", parent=None)
        again = tab.until("message.created")
    assert [message["id"] for message in again["messages"]] == [message["id"] for message in first["messages"]]
    assert again["messages"][1]["text"] == "so far"
    assert Generation.objects.count() == 1


def test_a_send_while_an_answer_is_written_brings_what_the_tab_lacks(alice: Person) -> None:
    claim = factories.running()
    where = Conversation.objects.get(pk=claim.conversation)
    factories.wrote(claim, "so far")
    with alice.tab(where) as tab:
        tab.say(where, "Too early", parent=None)
        refused = tab.error()
        assert (refused["code"], refused["retryable"]) == ("turn_in_progress", True)
        assert refused["client_id"]
        assert refused["generation"]["text"] == "so far"
        assert [message["role"] for message in refused["messages"]] == ["user", "assistant"]
        assert tab.answers()


def test_what_changes_elsewhere_arrives_in_every_tab(alice: Person) -> None:
    where = factories.conversation(factories.person("alice"))
    with alice.tab() as tab, alice.tab(where) as reader:
        alice.patch(f"conversations/{where.pk}/", {"title": "Engines"})
        assert tab.expect("conversation.updated")["conversation"]["title"] == "Engines"
        assert reader.expect("conversation.updated")["conversation"]["title"] == "Engines"
        alice.delete(f"conversations/{where.pk}/")
        for one in (tab, reader):
            assert one.expect("conversation.deleted") == {"type": "conversation.deleted", "conversation": str(where.pk)}
            assert one.quiet()
        made = alice.post("conversations/", {"title": "New"}).json()
        assert tab.expect("conversation.updated")["conversation"] == made


def test_a_snapshot_and_the_events_after_it_equal_a_later_snapshot(alice: Person) -> None:
    claim = factories.running()
    where = Conversation.objects.get(pk=claim.conversation)
    with alice.tab(where) as early:
        for number in range(30):
            worker.publish(claim, f"{number} ½ 😀 ")
        with alice.tab(where) as late:
            worker.finish(claim)
            early.until("generation.done")
            late.until("generation.done")
    with alice.tab(where) as fresh:
        pass
    assert early.shown == late.shown == fresh.shown
    assert early.seq == late.seq == fresh.seq
    assert early.status == late.status == fresh.status


def test_a_long_conversation_is_shown_from_its_end_and_says_so(alice: Person) -> None:
    where = factories.conversation(factories.person("alice"))
    for number in range(60):
        turns.cancel(alice.pk, factories.sent(where, f"message {number}").generation.pk)
    with alice.tab() as tab:
        tab.send("subscribe", conversation=str(where.pk))
        shown = tab.expect("snapshot")
    assert shown["earlier"] is True
    assert len(shown["messages"]) == history.SNAPSHOT_MESSAGES
    assert shown["messages"][-2]["text"] == "message 59"


def test_a_snapshot_fits_into_one_frame_of_a_megabyte(alice: Person) -> None:
    where = factories.conversation(factories.person("alice"))
    for _ in range(8):
        turns.cancel(alice.pk, factories.sent(where, "é" * 150_000).generation.pk)
    with alice.tab() as tab:
        tab.send("subscribe", conversation=str(where.pk))
        raw = tab.connection.recv(10)
    assert len(raw.encode() if isinstance(raw, str) else raw) <= 1024 * 1024
