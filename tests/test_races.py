"""Two devices at once: what they ask for in the same moment is done or refused, and the conversation stays whole."""

import functools
import itertools
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now

from conversations import actions, errors, history, leaving, sending, turns
from conversations.claims import Claim
from conversations.models import Chunk, Conversation, Generation, Message
from conversations.sending import Turn
from conversations.turns import Ending
from slots import leases
from slots.models import Server, Slot
from tests import factories, worker
from tests.concurrently import at_once
from tests.eventually import eventually
from tests.llama_client import in_background
from tests.test_api_conversations import refused
from tests.test_api_messages import answered
from tests.web import Person, Tab

pytestmark = pytest.mark.django_db(transaction=True)

Outcome = object  # what a call gave, or the code of the error that it raised
Call = Callable[[Conversation], Outcome]
STOPPED = Ending(Generation.Status.CANCELLED)


@pytest.fixture
def where() -> Conversation:
    """One whose last answer was stopped, after one that is complete."""
    factories.server()
    made = factories.conversation(factories.person("alice"))
    answered(made, "One", "First answer")
    cut_short(made, "Two")
    made.refresh_from_db()
    return made


def cut_short(where: Conversation, words: str) -> None:
    factories.sent(where, words)
    claim = worker.claimed()
    factories.wrote(claim, "So far")
    turns.finish(claim, STOPPED)
    leases.release(claim.grant, 10, 1)


def send(where: Conversation) -> Outcome:
    return sending.send(where.owner_id, where.pk, uuid.uuid4(), "Three", where.leaf_id, to_leaf=False)


def edit(where: Conversation) -> Outcome:
    first = Message.objects.get(text="One")
    return actions.edit(where.owner_id, first.pk, uuid.uuid4(), "Other one")


def regenerate(where: Conversation) -> Outcome:
    assert where.leaf_id
    return sending.regenerate(where.owner_id, where.leaf_id, uuid.uuid4())


def go_on(where: Conversation) -> Outcome:
    stopped = Generation.objects.get(message=where.leaf_id, status="cancelled")
    return sending.continue_answer(where.owner_id, stopped.pk, uuid.uuid4())


def show(where: Conversation) -> Outcome:
    return actions.show_version(where.owner_id, Message.objects.get(text="First answer").pk)


def delete(where: Conversation) -> Outcome:
    actions.delete(where.owner_id, where.pk)
    return None


def outcome(call: Callable[[], Outcome]) -> Outcome:
    with closing(connection):
        try:
            return call()
        except errors.ChatError as error:
            return error.code


def together(*calls: Callable[[], Outcome]) -> list[Outcome]:
    return at_once(*[lambda call=call: outcome(call) for call in calls])


def is_whole(where: Conversation) -> None:
    """What is shown ends with an answer, what waits is that one, and nothing stands beside the tree."""
    where.refresh_from_db()
    shown = history.path(where.pk, where.leaf_id)
    assert shown[0].parent is None
    assert [message.role for message in shown] == ["user", "assistant"] * (len(shown) // 2)
    live = Generation.objects.filter(conversation=where, status__in=Generation.LIVE)
    assert {generation.message_id for generation in live} <= {where.leaf_id}
    assert live.count() <= 1
    questions = Message.objects.filter(conversation=where, role="user")
    assert all(question.children.exists() for question in questions)
    answers = Message.objects.filter(conversation=where, role="assistant")
    assert all(answer.generations.exists() for answer in answers)


BEGINNING = [send, edit, regenerate, go_on]


@pytest.mark.parametrize(
    ("one", "other"), list(itertools.combinations_with_replacement(BEGINNING, 2)), ids=lambda call: call.__name__
)
def test_of_two_devices_that_ask_for_an_answer_one_gets_it_and_the_other_is_told(
    where: Conversation, one: Call, other: Call
) -> None:
    outcomes = together(*[lambda: one(where), lambda: other(where)] * 2)
    assert outcomes.count("turn_in_progress") == 3, outcomes
    assert Generation.objects.filter(status="queued").count() == 1
    is_whole(where)


@pytest.mark.parametrize("call", BEGINNING, ids=lambda call: call.__name__)
def test_a_branch_is_chosen_before_or_after_an_answer_is_asked_for(where: Conversation, call: Call) -> None:
    outcomes = together(lambda: call(where), lambda: show(where))
    assert {outcome for outcome in outcomes if isinstance(outcome, str)} <= {"turn_in_progress", "cannot_continue"}
    assert len([outcome for outcome in outcomes if isinstance(outcome, str)]) <= 1
    is_whole(where)


@pytest.mark.parametrize("call", BEGINNING, ids=lambda call: call.__name__)
def test_a_conversation_that_is_deleted_meanwhile_takes_nothing_more(where: Conversation, call: Call) -> None:
    outcomes = together(lambda: call(where), lambda: delete(where))
    assert [outcome for outcome in outcomes if isinstance(outcome, str)] in ([], ["not_found"])
    assert not Generation.objects.filter(status__in=Generation.LIVE).exists()
    assert turns.claim(factories.WORKER, [Server.objects.get().pk]) is None
    assert outcome(lambda: send(where)) == "not_found"


@pytest.fixture
def claim(where: Conversation) -> Claim:
    send(where)
    claim = worker.claimed()
    factories.wrote(claim, "Being ", "written")
    return claim


def test_stopped_on_two_devices_it_is_stopped_once(where: Conversation, claim: Claim) -> None:
    outcomes = together(*[lambda: turns.cancel(where.owner_id, claim.generation)] * 4)
    assert {getattr(outcome, "status", outcome) for outcome in outcomes} == {"running"}
    turns.finish(claim, STOPPED)
    assert (Generation.objects.get(pk=claim.generation).status, Chunk.objects.count()) == ("cancelled", 0)
    waiting = factories.sent(where, "Four").generation
    together(*[lambda: turns.cancel(where.owner_id, waiting.pk)] * 4)
    waiting.refresh_from_db()
    assert (waiting.status, waiting.seq) == ("cancelled", 1)
    is_whole(where)


def test_stopped_at_its_end_it_ends_once_with_all_its_text(where: Conversation, claim: Claim) -> None:
    done = Ending(Generation.Status.DONE, "stop")
    together(lambda: turns.cancel(where.owner_id, claim.generation), lambda: turns.finish(claim, done))
    ended = history.generation(Generation.objects.get(pk=claim.generation))
    assert (ended.status, ended.text, ended.seq) == ("done", "Being written", 3)
    is_whole(where)


def test_stopped_while_its_worker_puts_it_back_it_does_not_wait_for_ever(where: Conversation, claim: Claim) -> None:
    mine = Generation.objects.filter(pk=claim.generation)
    with transaction.atomic():
        mine.update(stop_asked_at=Now())
        put_back = in_background(lambda: outcome(lambda: turns.requeue(claim, refund=False)))
        eventually(somebody_is_locked_out)
    put_back()
    assert mine.get().status == "cancelled"
    is_whole(where)


def test_an_account_that_goes_takes_along_what_is_being_sent_to(where: Conversation) -> None:
    with transaction.atomic():
        Conversation.objects.select_for_update(no_key=True).get(pk=where.pk)
        goes = in_background(lambda: outcome(lambda: leaving.remove(where.owner_id)))
        eventually(somebody_is_locked_out)
    goes()
    assert not Conversation.objects.exists()
    assert not Slot.objects.filter(kv_of=where.pk).exists()


def somebody_is_locked_out() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])


def test_the_end_of_an_answer_and_the_next_message_come_one_after_the_other(where: Conversation, claim: Claim) -> None:
    where.refresh_from_db()
    done = Ending(Generation.Status.DONE, "stop")
    outcomes = together(lambda: turns.finish(claim, done), lambda: send(where), lambda: go_on_with(claim))
    assert set(map(type, outcomes)) <= {int, Turn, str}
    assert {outcome for outcome in outcomes if isinstance(outcome, str)} <= {"turn_in_progress", "cannot_continue"}
    is_whole(where)


def go_on_with(claim: Claim) -> Outcome:
    return sending.continue_answer(Generation.objects.get(pk=claim.generation).owner_id, claim.generation, uuid.uuid4())


@pytest.fixture
def tab(alice: Person, where: Conversation) -> Iterator[Tab]:
    with alice.tab(where) as tab:
        yield tab


def test_sent_over_rest_and_over_the_websocket_at_once_it_is_one_turn(
    alice: Person, where: Conversation, tab: Tab
) -> None:
    """A double click, or a retry over another way; five times over."""
    path = f"conversations/{where.pk}/messages/"
    for number in range(5):
        where.refresh_from_db()
        body = {"client_id": str(uuid.uuid4()), "text": f"Question {number}", "parent": str(where.leaf_id)}
        posted = in_background(functools.partial(alice.post, path, body))
        for _ in range(2):
            tab.send("send", conversation=str(where.pk), **body)
        created = tab.until("message.created")
        assert created["messages"][0]["id"] == posted().json()["message"]["id"]
        assert Generation.objects.filter(client_id=body["client_id"]).count() == 1
        worker.finish(claimed := worker.claimed())
        leases.release(claimed.grant, 10, 1)
        tab.until("generation.done")
        is_whole(where)


def test_who_missed_something_is_told_what_and_has_sent_nothing(alice: Person, where: Conversation, tab: Tab) -> None:
    stale = Message.objects.get(text="First answer")
    body = refused(alice.say(where, parent=str(stale.pk), branch=False), 409, "parent_stale")
    assert [message["text"] for message in body["messages"]] == ["Two", "So far"]
    tab.say(where, parent=None, branch=False)
    assert [message["text"] for message in tab.error()["messages"]] == ["One", "First answer", "Two", "So far"]
    refused(alice.say(where, parent=str(uuid.uuid4()), branch=False), 400, "parent_unknown")
    refused(alice.say(where, parent=None, branch="no"), 400, "invalid")
    assert Message.objects.count() == 4
    assert alice.say(where, parent=str(where.leaf_id), branch=False).status_code == 202
    body = refused(alice.say(where, parent=str(stale.pk), branch=False), 409, "turn_in_progress")
    assert [message["text"] for message in body["messages"]] == ["Two", "So far", "Hello", ""]
