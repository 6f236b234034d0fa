"""An answer that ended too early is gone on with: one message, one text, on every device, from a warm cache."""

import json
import uuid
from typing import Any

import pytest
import requests

from conversations import errors, history, sending, turns
from conversations.models import Chunk, Conversation, Generation, Message
from conversations.sending import Turn
from conversations.turns import Ending
from slots import leases
from slots.models import Server, Slot
from tests import factories, worker
from tests.answers import ended, look
from tests.eventually import eventually
from tests.fake_llama import FakeLlama, Script, default_answer
from tests.stack import StartProcess
from tests.test_api_conversations import refused
from tests.test_api_messages import answered
from tests.test_importing import comes, conversation, document, message, run
from tests.web import Person

pytestmark = pytest.mark.django_db(transaction=True)

CANCELLED = Ending(Generation.Status.CANCELLED)
LENGTH = Ending(Generation.Status.DONE, finish_reason="length")
FAILED = Ending(Generation.Status.FAILED, error={"code": "server_failed", "detail": "It failed.", "retryable": True})


@pytest.fixture
def where() -> Conversation:
    factories.server()
    return factories.conversation(factories.person("alice"))


def stopped(where: Conversation, text: str = "So far", ending: Ending = CANCELLED, part: int = 0) -> Generation:
    """An answer that ended with `text` written."""
    factories.sent(where, "Go on for long")
    claim = worker.claimed()
    if text:
        factories.wrote(claim, text, part=part)
    turns.finish(claim, ending)
    leases.release(claim.grant, 10, 1)
    return Generation.objects.get(pk=claim.generation)


def more(person: Person, generation: Any, **extra: Any) -> requests.Response:
    body = {"client_id": str(extra.pop("client_id", uuid.uuid4()))}
    return person.post(f"generations/{getattr(generation, 'pk', generation)}/continue/", body, **extra)


def go_on(generation: Generation) -> Turn:
    return sending.continue_answer(generation.owner_id, generation.pk, uuid.uuid4())


@pytest.mark.parametrize(
    ("text", "part", "ending"),
    [
        ("So far", 0, CANCELLED),
        ("So far", 0, LENGTH),
        ("So far", 0, FAILED),
        ("So far", 0, Ending(Generation.Status.INTERRUPTED, error=FAILED.error)),
        ("Let me think", 1, CANCELLED),
    ],
    ids=["stopped", "at its limit", "failed", "interrupted", "stopped while it thought"],
)
def test_what_ended_too_early_is_gone_on_with_in_the_same_message(
    where: Conversation, text: str, part: int, ending: Ending
) -> None:
    first = stopped(where, text, ending, part)
    turn = go_on(first)
    assert (turn.generation.message_id, turn.message.text) == (first.message_id, "Go on for long")
    where.refresh_from_db()
    assert where.leaf_id == first.message_id
    key = "reasoning_content" if part else "content"
    assert history.prompt(where.pk, first.message_id)[-1][key] == text
    claim = worker.claimed()
    assert (claim.text_length, claim.reasoning_length)[part] == len(text)
    factories.wrote(claim, " and on", part=part)
    during = history.path(where.pk, where.leaf_id)[-1]
    assert (during.text, during.reasoning)[part] == f"{text} and on"
    turns.finish(claim, Ending(Generation.Status.DONE, "stop"))
    after = history.path(where.pk, where.leaf_id)[-1]
    assert (after.text, after.reasoning)[part] == f"{text} and on"
    assert after.generation
    assert (after.generation.id, after.generation.status) == (claim.generation, "done")
    assert Generation.objects.get(pk=first.pk).status == ending.status
    assert (Message.objects.count(), Chunk.objects.count()) == (2, 0)


@pytest.mark.parametrize(
    ("text", "ending", "why"),
    [
        ("All of it", Ending(Generation.Status.DONE, "stop"), "is complete"),
        ("", CANCELLED, "Nothing was written"),
        ("", FAILED, "Nothing was written"),
    ],
)
def test_what_cannot_be_gone_on_with_is_refused_with_the_reason(
    alice: Person, where: Conversation, text: str, ending: Ending, why: str
) -> None:
    body = refused(more(alice, stopped(where, text, ending)), 409, "cannot_continue")
    assert why in body["detail"]
    assert Generation.objects.count() == 1


def test_only_the_last_answer_is_gone_on_with_and_a_stale_device_is_told_what_is_newer(
    alice: Person, bob: Person, where: Conversation
) -> None:
    first = stopped(where)
    refused(more(bob, first), 404, "not_found")
    refused(more(alice, uuid.uuid4()), 404, "not_found")
    refused(alice.post(f"generations/{first.pk}/continue/", {}), 400, "invalid")
    answered(where, "Two", "Second answer")
    body = refused(more(alice, first), 409, "cannot_continue")
    assert [message["text"] for message in body["messages"]] == ["Two", "Second answer"]
    other = stopped(where, "Third")
    turn = go_on(other)
    body = refused(more(alice, other), 409, "turn_in_progress")
    assert (body["generation"]["id"], body["messages"]) == (str(turn.generation.pk), [])
    claim = worker.claimed()
    turns.finish(claim, LENGTH)
    assert "already" in refused(more(alice, other), 409, "cannot_continue")["detail"]
    leases.release(claim.grant, 10, 1)
    assert more(alice, claim.generation).status_code == 202


def test_the_same_client_id_is_one_wish(alice: Person, where: Conversation) -> None:
    first, client_id = stopped(where), uuid.uuid4()
    made = more(alice, first, client_id=client_id)
    assert (made.status_code, made.json()["generation"]["text"]) == (202, "So far")
    assert more(alice, first, client_id=client_id).json() == made.json()
    again = made.json()["generation"]["id"]
    refused(more(alice, again, client_id=client_id), 409, "client_id_reused")
    with pytest.raises(errors.ClientIdReused):
        sending.regenerate(where.owner_id, first.message_id, client_id)
    assert Generation.objects.count() == 2


def test_every_tab_goes_on_from_the_text_that_it_has(alice: Person, where: Conversation) -> None:
    first = stopped(where, "Só far 👍🏽")
    with alice.tab(where) as tab, alice.tab(where) as other, alice.tab() as rendering:
        rendering.send("subscribe", conversation=str(where.pk), html=True)
        before = rendering.expect("snapshot")["messages"][1]["html"]
        assert "Só far 👍🏽" in before[0]
        assert more(alice, first).status_code == 202
        for one in (tab, other):
            created = one.expect("message.created")["messages"]
            assert [message["text"] for message in created] == ["Go on for long", "Só far 👍🏽"]
            assert created[1]["id"] == str(first.message_id)
            assert one.until("generation.queued")["place"] == 1
        claim = worker.claimed()
        worker.publish(claim, " and", " on")
        worker.finish(claim)
        for one in (tab, other):
            assert one.until("generation.delta")["offset"] == len("Só far 👍🏽")
            assert one.until("generation.done")["message"] == str(first.message_id)
            assert one.shown[str(claim.generation)] == "Só far 👍🏽 and on"
            assert [frame["type"] for frame in one.frames].count("snapshot") == 1
        blocks = list(before)
        while not (frame := rendering.until("message.html"))["final"]:
            blocks[frame["keep"] :] = frame["blocks"]
        blocks[frame["keep"] :] = frame["blocks"]
        assert "Só far 👍🏽 and on" in blocks[0]
    assert alice.get(f"conversations/{where.pk}/messages/?html=true").json()["results"][1]["html"] == blocks


def test_with_an_event_stream_what_is_added_is_streamed(alice: Person, where: Conversation) -> None:
    first = stopped(where)
    with more(alice, first, headers={"Accept": "text/event-stream"}, stream=True) as response:
        lines = (line for line in response.iter_lines() if line.startswith(b"data: "))
        begun = [json.loads(next(lines)[6:]), json.loads(next(lines)[6:])]
        claim = worker.claimed()
        worker.publish(claim, " and on")
        worker.finish(claim)
        events = [json.loads(line[6:]) for line in lines]
    assert (begun[0]["type"], begun[1]["text"]) == ("message.created", "So far")
    assert [(event["offset"], event["text"]) for event in events if "offset" in event] == [(6, " and on")]
    assert events[-1]["type"] == "generation.done"


def test_an_attempt_to_go_on_that_fails_says_that_what_there_was_is_kept(where: Conversation) -> None:
    go_on(stopped(where))
    on = Server.objects.get()
    for _ in range(3):
        worker.claimed()
        leases.empty_server(on.pk, 2)
        interrupted = turns.rescue()
    ((_, generation),) = interrupted
    error = Generation.objects.get(pk=generation).error
    assert error
    assert "What was written is kept." in error["detail"]


def cost(view: history.GenerationView) -> tuple[int, str | None]:
    """Tokens of the prompt that were read, and why more than were new."""
    assert view.timings
    return view.timings["prompt_n"], view.timings["replay_cause"]


def test_on_a_warm_slot_next_to_nothing_is_read_and_nothing_after_it_is_taken_for_lost(
    fake_llama: FakeLlama, start_worker: StartProcess
) -> None:
    start_worker(LLAMA_SERVERS=fake_llama.url)
    where = factories.conversation(params={"max_tokens": 12}, system_prompt="Be brief.")
    words = f"{'A long message. ' * 20}[[tokens=40]]"
    first = factories.sent(where, words)
    assert ended(first).finish_reason == "length"
    second = go_on(first.generation)
    view = ended(second)
    assert (view.text, view.finish_reason) == (default_answer(words, 24), "length")
    assert view.usage
    assert view.usage["completion_tokens"] == 12
    prompt_n, cause = cost(view)
    assert (prompt_n <= 2, cause) == (True, None), view.timings
    Conversation.objects.update(params={})
    third = ended(go_on(second.generation))
    assert (third.text, third.finish_reason) == (default_answer(words, 40), "stop")
    body = fake_llama.requests[-1].body
    assert body["messages"][-1] == {"role": "assistant", "content": view.text}
    assert (body["add_generation_prompt"], body["continue_final_message"]) == (False, True)
    again = ended(sending.regenerate(where.owner_id, first.generation.message_id, uuid.uuid4()))
    prompt_n, cause = cost(again)
    assert (prompt_n <= 2, cause) == (True, None), again.timings
    assert Message.objects.count() == 3


def test_what_failed_twice_goes_on_after_a_restart_from_what_was_kept(
    fake_llama: FakeLlama, start_worker: StartProcess
) -> None:
    fake_llama.script(Script(tokens=100, fault="error", after=20, times=3))
    start_worker(LLAMA_SERVERS=fake_llama.url)
    first = factories.sent(words="Tell me.")
    view = ended(first)
    assert (view.status, len(view.text) > 20) == ("failed", True)
    before = view.text
    fake_llama.script(Script(tokens=100))
    fake_llama.script(Script(fault="400", times=1))
    second = go_on(first.generation)
    view = ended(second)
    assert (view.status, view.text) == ("failed", before)
    assert view.error
    assert "What was written is kept." in view.error["detail"]
    fake_llama.restart()
    view = ended(go_on(second.generation))
    assert (view.status, view.text) == ("done", default_answer("Tell me.", 100))
    assert view.text.startswith(before)


def test_a_stopped_thought_is_gone_on_with(fake_llama: FakeLlama, start_worker: StartProcess) -> None:
    thought = " ".join(f"step{number}" for number in range(60))
    fake_llama.script(Script(reasoning=thought, text="Steam."))
    fake_llama.script(Script(reasoning=thought, text="Steam.", rate=8, times=1))
    start_worker(LLAMA_SERVERS=fake_llama.url)
    first = factories.sent(words="Why?")
    eventually(lambda: len(look(first).reasoning) > 20)
    turns.cancel(first.generation.owner_id, first.generation.pk)
    stopped_at = ended(first)
    assert (stopped_at.text, thought.startswith(stopped_at.reasoning.strip())) == ("", True)
    eventually(lambda: Slot.objects.filter(phase="idle").exists())
    view = ended(go_on(first.generation))
    assert (view.reasoning.strip(), view.text) == (thought, "Steam.")
    assert cost(view)[0] <= 4, view.timings


def test_what_came_from_elsewhere_and_answers_nothing_is_refused(alice: Person) -> None:
    for role in ("user", "assistant"):
        first = message("a", role=role, text="So far", generations=[run(status="interrupted")])
        comes(alice.pk, document(conversation(first)))
        found = Generation.objects.latest("pk")
        assert "answer to a message" in refused(more(alice, found), 409, "cannot_continue")["detail"]
