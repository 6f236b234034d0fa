"""Another answer to the same message: over REST, on the websocket, and by a worker on a warm slot."""

import json
import threading
import uuid
from typing import Any

import pytest
import requests

from conversations import errors, sending, turns
from conversations.models import Conversation, Generation, Message
from tests import factories, worker
from tests.answers import ended
from tests.fake_llama import FakeLlama, Script
from tests.stack import StartProcess
from tests.test_api_conversations import refused
from tests.test_api_messages import answered
from tests.web import Person

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def where(alice: Person) -> Conversation:
    factories.server()
    return factories.conversation(factories.person("alice"))


def again(person: Person, answer: Message | uuid.UUID, **more: Any) -> requests.Response:
    id_ = answer.pk if isinstance(answer, Message) else answer
    return person.post(f"messages/{id_}/regenerate/", {"client_id": str(uuid.uuid4())}, **more)


def shown(person: Person, where: Conversation) -> list[str]:
    page = person.get(f"conversations/{where.pk}/messages/").json()
    return [message["text"] for message in page["results"]]


def test_another_answer_stands_beside_the_first_and_is_the_one_shown(alice: Person, where: Conversation) -> None:
    first = answered(where, "One", "First answer")
    asked = again(alice, first)
    assert asked.status_code == 202
    assert set(asked.json()) == {"message", "generation"}
    assert asked.json()["message"]["id"] == str(first.parent_id)
    generation = asked.json()["generation"]
    assert (generation["status"], generation["place"], generation["text"]) == ("queued", 1, "")
    assert shown(alice, where) == ["One", ""]
    claim = worker.claimed()
    worker.publish(claim, "Second answer")
    worker.finish(claim)
    assert shown(alice, where) == ["One", "Second answer"]
    assert Message.objects.get(pk=first.pk).text == "First answer"
    assert Message.objects.get(pk=claim.message).parent_id == first.parent_id
    assert Message.objects.filter(role="user").count() == 1


def test_an_answer_in_the_middle_can_be_written_again_and_what_followed_is_kept(
    alice: Person, where: Conversation
) -> None:
    first = answered(where, "One", "First answer")
    answered(where, "Two", "Answer to two")
    assert again(alice, first).status_code == 202
    assert shown(alice, where) == ["One", ""]
    assert Message.objects.filter(text="Answer to two").exists()
    worker.finish(worker.claimed())
    assert alice.say(where, "Three").json()["message"]["parent"] != str(first.pk)


@pytest.mark.parametrize("status", ["failed", "interrupted", "cancelled"])
def test_what_did_not_come_to_its_end_can_be_tried_again(alice: Person, where: Conversation, status: str) -> None:
    factories.sent(where)
    claim = worker.claimed()
    turns.finish(claim, turns.Ending(Generation.Status(status)))
    assert again(alice, claim.message).status_code == 202
    assert Generation.objects.get(pk=claim.generation).status == status


def test_the_same_client_id_is_one_wish_and_with_another_message_it_is_refused(
    alice: Person, where: Conversation
) -> None:
    first = answered(where, "One", "First answer")
    wish = {"client_id": str(uuid.uuid4())}
    made = alice.post(f"messages/{first.pk}/regenerate/", wish).json()
    assert alice.post(f"messages/{first.pk}/regenerate/", wish).json() == made
    new = made["generation"]["message"]
    refused(alice.post(f"messages/{new}/regenerate/", wish), 409, "client_id_reused")
    refused(alice.say(where, "One", **wish), 409, "client_id_reused")
    assert Message.objects.count() == 3


def test_only_an_answer_can_be_written_again(alice: Person, bob: Person, where: Conversation) -> None:
    first = answered(where, "One", "First answer")
    assert first.parent_id
    refused(again(alice, first.parent_id), 400, "not_an_answer")
    refused(again(bob, first), 404, "not_found")
    refused(again(alice, uuid.uuid4()), 404, "not_found")
    refused(alice.post(f"messages/{first.pk}/regenerate/", {}), 400, "invalid")
    refused(alice.post(f"messages/{first.pk}/regenerate/", {"client_id": "1", "text": ""}), 400, "invalid")
    assert Message.objects.count() == 2


def test_while_an_answer_is_written_another_is_refused_with_what_is_there(alice: Person, where: Conversation) -> None:
    first = answered(where, "One", "First answer")
    live = factories.sent(where, "Two")
    for answer in (first.pk, live.generation.message_id):
        body = refused(again(alice, answer), 409, "turn_in_progress")
        assert body["generation"]["id"] == str(live.generation.pk)
    assert Message.objects.count() == 4


def at_once(*moves: Any) -> list[object]:
    """What each of `moves` did in the same moment, in threads of their own: its turn, or the error it raised."""
    start, outcomes = threading.Barrier(len(moves)), []

    def run(move: Any) -> None:
        from django.db import connection

        start.wait()
        try:
            outcomes.append(move())
        except errors.ChatError as error:
            outcomes.append(error.code)
        finally:
            connection.close()

    running = [threading.Thread(target=run, args=(move,)) for move in moves]
    for one in running:
        one.start()
    for one in running:
        one.join()
    return outcomes


def regenerating(answer: Message) -> Any:
    return lambda: sending.regenerate(factories.person("alice").pk, answer.pk, uuid.uuid4())


def test_of_two_wishes_in_the_same_moment_one_is_granted(where: Conversation) -> None:
    first = answered(where, "One", "First answer")
    outcomes = at_once(*[regenerating(first)] * 6)
    assert outcomes.count("turn_in_progress") == 5
    assert Message.objects.count() == 3


def test_a_wish_and_a_message_in_the_same_moment_make_one_turn(where: Conversation) -> None:
    first = answered(where, "One", "First answer")
    outcomes = at_once(*[regenerating(first), lambda: factories.sent(where, "Two")] * 3)
    assert outcomes.count("turn_in_progress") == 5
    where.refresh_from_db()
    assert where.leaf_id == Generation.objects.get(status="queued").message_id


def test_the_same_wish_many_times_in_the_same_moment_is_one_turn(where: Conversation) -> None:
    first, client_id = answered(where, "One", "First answer"), uuid.uuid4()
    outcomes = at_once(*[lambda: sending.regenerate(where.owner_id, first.pk, client_id).generation.pk] * 6)
    assert len(set(outcomes)) == 1
    assert Generation.objects.count() == 2


def test_every_tab_sees_the_new_answer_take_the_place_of_the_old(alice: Person, where: Conversation) -> None:
    first = answered(where, "One", "First answer")
    answered(where, "Two", "Answer to two")
    with alice.tab(where) as tab, alice.tab(where) as other:
        asked = again(alice, first).json()
        for one in (tab, other):
            created = one.expect("message.created")
            assert [message["id"] for message in created["messages"]] == [
                str(first.parent_id), asked["generation"]["message"],
            ]  # fmt: skip
            assert created["messages"][1]["parent"] == str(first.parent_id)
            assert one.until("generation.queued")["place"] == 1
        claim = worker.claimed()
        worker.publish(claim, "Second ", "answer")
        worker.finish(claim)
        for one in (tab, other):
            assert one.until("generation.done")["message"] == str(claim.message)
            assert one.shown[str(claim.generation)] == "Second answer"
            assert [frame["type"] for frame in one.frames].count("snapshot") == 1
    with alice.tab() as fresh:
        fresh.send("subscribe", conversation=str(where.pk))
        snapshot = fresh.expect("snapshot")
    assert [message["text"] for message in snapshot["messages"]] == ["One", "Second answer"]


def test_a_tab_that_missed_the_wish_is_shown_the_new_branch(alice: Person, where: Conversation) -> None:
    first = answered(where, "One", "First answer")
    with alice.tab(where) as tab:
        sending.regenerate(alice.pk, first.pk, uuid.uuid4())  # announced to nobody
        claim = worker.claimed()
        worker.publish(claim, "Second")
        snapshot = tab.until("snapshot")
        assert [message["text"] for message in snapshot["messages"]] == ["One", "Second"]
        worker.finish(claim)
        tab.until("generation.done")


def test_with_an_event_stream_the_new_answer_is_streamed(alice: Person, where: Conversation) -> None:
    first = answered(where, "One", "First answer")
    events: list[dict[str, Any]] = []
    with again(alice, first, headers={"Accept": "text/event-stream"}, stream=True) as response:
        assert response.status_code == 200
        lines = (line for line in response.iter_lines() if line.startswith(b"data: "))
        events += [json.loads(next(lines)[6:]), json.loads(next(lines)[6:])]
        claim = worker.claimed()
        worker.publish(claim, "Second answer")
        worker.finish(claim)
        events += [json.loads(line[6:]) for line in lines]
    assert events[0]["type"] == "message.created"
    assert events[0]["messages"][0]["id"] == str(first.parent_id)
    assert "Second answer" in [event.get("text") for event in events]
    assert events[-1]["type"] == "generation.done"


def test_a_worker_writes_it_on_the_warm_slot_from_the_same_prompt(
    fake_llama: FakeLlama, start_worker: StartProcess
) -> None:
    fake_llama.script(Script(text="First answer", times=1))
    start_worker(LLAMA_SERVERS=fake_llama.url)
    where = factories.conversation(system_prompt="Be brief.")
    first = factories.sent(where, "How do steam engines work?")
    assert ended(first).text == "First answer"
    fake_llama.script(Script(text="Second answer"))
    second = sending.regenerate(where.owner_id, first.generation.message_id, uuid.uuid4())
    view = ended(second)
    assert (view.status, view.text) == ("done", "Second answer")
    before, after = fake_llama.requests
    assert after.body["messages"] == before.body["messages"]
    assert after.id_slot == before.id_slot
    assert "cache_prompt" not in after.body
    assert view.timings
    assert view.timings["replay_cause"] is None
    assert view.timings["prompt_n"] <= 2
    assert Message.objects.get(pk=first.generation.message_id).text == "First answer"
