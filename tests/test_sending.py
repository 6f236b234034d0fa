"""The way that nearly every send takes, two statements, does what the long way does: same rows, same refusals."""

import uuid
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from unittest.mock import patch

import pytest
from django.conf import LazySettings
from django.db import transaction
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from conversations import at_once, errors, sending
from conversations.models import Conversation, Generation, Message, Person
from tests import factories

pytestmark = pytest.mark.django_db

WORDS = ["Hello", " a\x00b \ud800", " ", "x" * 200_001]
PARENTS = ["leaf", "none", "older", "question", "elsewhere", "missing", "left out"]


@dataclass(frozen=True)
class Case:
    """A message, and the state in which it is sent."""

    turns: int  # there are already
    live: bool  # an answer is waited for
    title: str
    archived: bool
    words: str
    parent: str
    branch: bool
    before: str  # what was sent under the same client_id
    own: int  # waiting messages of the same person
    others: int
    whose: str


@pytest.fixture
def limits(settings: LazySettings) -> None:
    settings.QUEUE_WAITING_PER_PERSON, settings.QUEUE_LENGTH = 1, 2
    for name in ("alice", "bob"):
        Person.objects.create(pk=factories.person(name).pk)  # who is new to the queue takes the long way


@given(
    st.builds(
        Case, turns=st.integers(0, 2), live=st.booleans(), title=st.sampled_from(["", "Named"]), archived=st.booleans(),
        words=st.sampled_from(WORDS), parent=st.sampled_from(PARENTS), branch=st.booleans(),
        before=st.sampled_from(["nothing", "nothing", "the same", "other words", "the same elsewhere"]),
        own=st.integers(0, 1), others=st.integers(0, 2), whose=st.sampled_from(["own", "own", "another's", "deleted"]),
    )
)  # fmt: skip
@example(Case(2, False, "", True, "Hello", "none", False, "nothing", 0, 0, "own"))
@example(Case(2, False, "", True, "Hello", "older", True, "nothing", 0, 0, "own"))
@example(Case(0, False, "", True, "Hello", "none", False, "nothing", 1, 0, "own"))
@example(Case(1, True, "Named", False, "Hello", "leaf", True, "nothing", 0, 0, "own"))
@example(Case(0, False, "", False, "Hello", "left out", True, "the same elsewhere", 0, 0, "own"))
@example(Case(1, False, "", False, "Hello", "leaf", True, "nothing", 0, 2, "own"))
@settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_both_ways_store_the_same_and_refuse_the_same(limits: None, case: Case) -> None:
    fast = sent_in(case)
    with patch.object(at_once, "send", return_value=None):
        assert sent_in(case) == fast


def test_the_short_way_is_taken_wherever_nothing_speaks_against_it(limits: None) -> None:
    for turns_before, parent, branch in ((0, "left out", True), (2, "leaf", False), (2, "none", True)):
        case = Case(turns_before, False, "", False, "Hello", parent, branch, "nothing", 0, 0, "own")
        with patch.object(sending, "_begin", side_effect=AssertionError("the long way")):
            assert sent_in(case)


def sent_in(case: Case) -> object:
    """What comes of it and what is stored then, without ids and times; undone afterwards."""
    with transaction.atomic():
        alice, bob = factories.person("alice"), factories.person("bob")
        where = factories.conversation(
            alice, title=case.title, archived=case.archived, params={"seed": 1}, system_prompt="Be brief."
        )
        elsewhere = factories.conversation(alice)
        for number in range(case.turns):
            said(where, f"Question {number}")
        said(elsewhere, "Elsewhere")
        where.refresh_from_db()
        parent = parent_of(case, where, elsewhere)
        client_id = uuid.uuid4()
        for conversation, words in sent_before(case, where, elsewhere):
            after = parent if conversation == where else None
            sending.send(alice.pk, conversation.pk, client_id, words, after, to_leaf=after is None)
        if case.live:
            with suppress(errors.ChatError):
                factories.sent(where, "Waiting")
        for owner in [alice] * case.own + [bob] * case.others:
            with suppress(errors.ChatError):
                factories.sent(factories.conversation(owner))
        if case.whose == "deleted":
            Conversation.objects.filter(pk=where.pk).update(deleted_at=datetime.now(UTC))
        owner = bob if case.whose == "another's" else alice
        try:
            to_leaf = case.parent == "left out"
            turn = sending.send(owner.pk, where.pk, client_id, case.words, parent, to_leaf, case.branch)
            came: object = turn.created, turn.message.text, turn.generation.params
        except errors.ChatError as error:
            came = error.code, [message.text for message in error.more.get("messages", [])]
        stored = came, rows(where), rows(elsewhere)
        transaction.set_rollback(True)
    return stored


def said(where: Conversation, words: str) -> None:
    where.refresh_from_db()
    question = Message.objects.create(conversation=where, parent_id=where.leaf_id, role="user", text=words)
    answer = Message.objects.create(conversation=where, parent=question, role="assistant", text=f"Answer to {words}")
    Conversation.objects.filter(pk=where.pk).update(leaf=answer)


def sent_before(case: Case, where: Conversation, elsewhere: Conversation) -> list[tuple[Conversation, str]]:
    """Only where it can be sent: the same is refused later."""
    if case.before == "the same elsewhere":
        return [(elsewhere, "Hello")]
    if case.before == "nothing" or case.parent in ("question", "elsewhere", "missing"):
        return []
    return [(where, "Hello" if case.before == "the same" else "Other words")]


def parent_of(case: Case, where: Conversation, elsewhere: Conversation) -> uuid.UUID | None:
    elsewhere.refresh_from_db()
    first = Message.objects.filter(conversation=where, role="user").order_by("id").first()
    older = Message.objects.filter(parent=first).first() if first else None
    found: dict[str, uuid.UUID | None] = {
        "leaf": where.leaf_id, "older": older.pk if older else None, "question": first.pk if first else None,
        "elsewhere": elsewhere.leaf_id, "missing": uuid.uuid4(),
    }  # fmt: skip
    return found.get(case.parent)


def rows(where: Conversation) -> object:
    """All that is stored of it; messages by their number instead of their id."""
    messages = list(Message.objects.filter(conversation=where).order_by("id"))
    number = {message.pk: at for at, message in enumerate(messages)}
    row = Conversation.objects.values().get(pk=where.pk)
    moved = row["updated_at"] > row["created_at"]
    generations = Generation.objects.filter(conversation=where).order_by("id").values()
    unsettled = ("id", "conversation_id", "message_id", "client_id", "request_digest", "queued_at")
    return (
        [(message.role, message.text, number.get(message.parent_id)) for message in messages],  # type: ignore[arg-type]
        [
            (number[found["message_id"]], {key: value for key, value in found.items() if key not in unsettled})
            for found in generations
        ],
        (row["title"], row["title_due"], row["archived"], number.get(row["leaf_id"]), moved),
    )
