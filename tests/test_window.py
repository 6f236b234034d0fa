"""A conversation that outgrows the context goes on: its beginning is left out, and said so (S30)."""

import itertools
import random
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from conversations import history, sending, window
from conversations.history import GenerationView
from conversations.models import Conversation, Generation, Message
from conversations.window import Said
from slots.models import Server, Slot
from tests import factories
from tests.answers import ended
from tests.eventually import eventually
from tests.fake_llama import FakeLlama, Script
from tests.stack import StartProcess

SYSTEM = "You are the keeper of a lighthouse."
CONTEXT = 512


def figure(view: GenerationView, name: str) -> Any:
    assert view.timings
    return view.timings[name]


def answered(where: Conversation, words: str, to: uuid.UUID | None = None) -> GenerationView:
    """The answer to `words`, said after the answer `to` or at the end, once its slot is idle."""
    view = ended(sending.send(where.owner_id, where.pk, uuid.uuid4(), words, to, to_leaf=to is None))
    eventually(lambda: not Slot.objects.filter(phase="busy").exists())
    return view


def question(number: int) -> str:
    return f"Question {number}: " + "what else is there to see at night " * 7


def sent_messages(server: FakeLlama) -> list[dict[str, str]]:
    return [dict(message) for message in server.requests[-1].body["messages"]]


@pytest.fixture
def small() -> Iterator[FakeLlama]:
    with FakeLlama(slots=2, n_ctx=CONTEXT, rate=5000) as server:
        yield server


@pytest.mark.django_db(transaction=True)
class TestGrown:
    def test_it_goes_on_without_its_beginning_and_most_turns_find_their_cache(
        self, small: FakeLlama, start_worker: StartProcess
    ) -> None:
        start_worker(LLAMA_SERVERS=small.url)
        where = factories.conversation(system_prompt=SYSTEM, params={"max_tokens": 40})
        views = [answered(where, question(number)) for number in range(11)]
        assert {view.status for view in views} == {"done"}
        assert "refused" not in {record.outcome for record in small.requests}
        said = list(history.path(where.pk, Conversation.objects.get().leaf_id))
        starts = [view.window_start for view in views if view.window_start]
        asked = [record.body["messages"] for record in small.requests if not record.raw]
        for number, (messages, view) in enumerate(zip(asked, views, strict=True)):
            assert messages[0] == {"role": "system", "content": SYSTEM}
            assert messages[1]["role"] == "user"
            assert messages[-1] == {"role": "user", "content": question(number)}
            assert figure(view, "prompt_n") + figure(view, "cache_n") <= CONTEXT - 40
            if view.window_start:
                assert figure(view, "replay_cause") == "trimmed"
                assert figure(view, "prompt_n") + figure(view, "cache_n") <= CONTEXT / 2
                assert messages[1]["content"] == Message.objects.get(pk=view.window_start).text
            elif number:
                assert figure(view, "replay_cause") is None
                assert figure(view, "prompt_n") < 90
        order = [message.id for message in said]
        assert [order.index(start) for start in starts] == sorted({order.index(start) for start in starts})
        jumps = [number for number, view in enumerate(views) if view.window_start]
        assert len(jumps) >= 2
        assert min(b - a for a, b in itertools.pairwise(jumps)) >= 2, jumps
        # Counted is only what may not fit: the first turns ask nothing.
        counted = [call for call in small.journal.calls if "input_tokens" in call]
        assert 0 < len(counted) <= 3 * len(views)

    def test_every_path_has_its_own_window(self, small: FakeLlama, start_worker: StartProcess) -> None:
        start_worker(LLAMA_SERVERS=small.url)
        where = factories.conversation(params={"max_tokens": 40})
        views = [answered(where, question(number)) for number in range(6)]
        moved = next(view for view in views if view.window_start)
        assert len(sent_messages(small)) < 15
        early = answered(where, "Another way?", to=views[1].message)
        assert early.window_start is None
        assert [message["content"] for message in sent_messages(small) if message["role"] == "user"] == [
            question(0), question(1), "Another way?",
        ]  # fmt: skip
        back = answered(where, "And so?", to=views[-1].message)
        assert back.status == "done"
        first = sent_messages(small)[0]["content"]
        start = back.window_start or next(view.window_start for view in reversed(views) if view.window_start)
        assert first == Message.objects.get(pk=start).text
        assert Message.objects.get(pk=start).pk >= (moved.window_start or start)

    def test_a_server_that_does_not_count_or_has_another_context_now_is_served_too(
        self, small: FakeLlama, start_worker: StartProcess
    ) -> None:
        small.set(counts=False)
        start_worker(LLAMA_SERVERS=small.url)
        where = factories.conversation(params={"max_tokens": 40})
        views = [answered(where, question(number)) for number in range(6)]
        assert any("/apply-template" in call for call in small.journal.calls)
        assert "refused" not in {record.outcome for record in small.requests}
        assert any(view.window_start for view in views)
        # Neither of the two ways: bytes are the measure, and what the server says of what it refused.
        small.set(tokenizer=False)
        views += [answered(where, question(number) + "?" * 60) for number in range(6, 9)]
        assert {view.status for view in views} == {"done"}
        # A smaller context, found out by a look at the new process.
        small.set(counts=True, tokenizer=True)
        small.options.n_ctx = 256
        small.restart()
        views.append(answered(where, "Is it dark?"))
        assert views[-1].status == "done"
        assert figure(views[-1], "prompt_n") + figure(views[-1], "cache_n") <= 256 - 40
        # A larger one: nothing has to be left out any more.
        small.options.n_ctx = 4096
        small.restart()
        eventually(lambda: Server.objects.filter(n_ctx=4096, state="ready").exists())
        whole = answered(where, "And now?")
        assert whole.window_start == Message.objects.order_by("id").first().pk  # type: ignore[union-attr]
        assert sent_messages(small)[0]["content"] == question(0)

    def test_what_the_server_refuses_for_its_length_is_shortened_and_sent_again(
        self, small: FakeLlama, start_worker: StartProcess
    ) -> None:
        """The row says 512 while another process, of 256, answers there already."""
        start_worker(LLAMA_SERVERS=small.url)
        where = factories.conversation(params={"max_tokens": 40})
        for number in range(3):
            answered(where, question(number))
        assert sum(message["role"] == "user" for message in sent_messages(small)) == 3
        small.set(n_ctx=256)
        view = answered(where, "And now?")
        assert (view.status, view.error) == ("done", None)
        assert [record.outcome for record in small.requests[-2:]] == ["refused", "stop"]
        assert figure(view, "replay_cause") == "trimmed"
        assert Server.objects.get().foreign_count == 0

    def test_going_on_with_an_answer_moves_the_window_and_one_that_fills_the_context_alone_fails_with_both_numbers(
        self, small: FakeLlama, start_worker: StartProcess
    ) -> None:
        start_worker(LLAMA_SERVERS=small.url)
        where = factories.conversation(params={"max_tokens": 400})
        small.script(Script(tokens=30, match="Question"))
        for number in range(3):
            answered(where, question(number))
        small.script(Script(tokens=1000, match="for ever"))
        full = answered(where, "Go on for ever")
        assert (full.status, full.finish_reason) == ("done", "length")
        assert full.usage
        assert full.usage["prompt_tokens"] + full.usage["completion_tokens"] == CONTEXT
        more = ended(sending.continue_answer(where.owner_id, full.id, uuid.uuid4()))
        assert more.status == "done"
        assert more.text.startswith(full.text)
        assert len(more.text) > len(full.text) + 100
        assert more.window_start
        rest = ended(sending.continue_answer(where.owner_id, more.id, uuid.uuid4()))
        assert rest.usage
        assert rest.usage["prompt_tokens"] + rest.usage["completion_tokens"] == CONTEXT
        again = ended(sending.continue_answer(where.owner_id, rest.id, uuid.uuid4()))
        assert again.status == "failed"
        assert again.error
        assert (again.error["code"], again.error["n_ctx"]) == ("context_exceeded", CONTEXT)
        assert again.error["prompt_tokens"] >= CONTEXT
        assert again.text == rest.text


def path(turns: list[tuple[int, int]]) -> list[Said]:
    """Questions and answers of so many tokens, and a last question."""
    said: list[Said] = []
    for asked, told in turns:
        said.append(Said(False, "user", "x" * asked, "", uuid.uuid4()))
        said.append(Said(False, "assistant", "x" * told, "", uuid.uuid4()))
    return said[:-1]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_said_it_fits_the_last_question_is_whole_and_the_start_only_moves_ahead(seed: int) -> None:
    chance = random.Random(seed)
    n_ctx = chance.choice([256, 512, 2048])
    most = chance.choice([20, 200, 8192])
    kept = window.reserve(most, n_ctx)
    largest = chance.choice([n_ctx // 16, n_ctx // 3, n_ctx - 1])
    turns = [(chance.randint(1, largest), chance.randint(1, kept)) for _ in range(60)]
    start, jumps, small = 0, [], largest <= n_ctx // 16 and kept <= n_ctx // 16
    for number in range(1, len(turns) + 1):
        messages = path(turns[:number])

        def tokens(at: int, messages: list[Said] = messages) -> int:
            return sum(len(one.text) for one in messages[at:])

        chosen = window.choose(window.starts(messages, start), tokens, n_ctx, kept)
        assert chosen is not None
        assert chosen >= start
        assert messages[chosen].role == "user"
        assert tokens(chosen) < n_ctx
        if chosen != start:
            assert tokens(start) > n_ctx - kept
            jumps.append(number)
        start = chosen
    if small:
        assert all(later - sooner >= 3 for sooner, later in itertools.pairwise(jumps)), jumps


def test_what_was_noted_on_the_path_last_counts_unless_the_context_has_grown() -> None:
    messages = path([(1, 1)] * 6)
    assert window.begins(messages) == 0
    messages[5] = messages[5]._replace(window_start=messages[2].id, window_context=512)
    messages[7] = messages[7]._replace(window_start=messages[4].id, window_context=512)
    assert [window.begins(messages, n_ctx) for n_ctx in (256, 512, 513, None)] == [4, 4, 0, 4]
    assert window.begins(messages[:7]) == 2
    assert window.begins(messages[:5]) == 0


def test_one_turn_more_is_sent_where_the_last_question_would_be_alone() -> None:
    tokens = {0: 900, 2: 650, 4: 300}
    assert window.choose([0, 2, 4], tokens.__getitem__, 1000, 200) == 2
    assert window.choose([0, 2, 4], {0: 900, 2: 850, 4: 600}.__getitem__, 1000, 200) == 4
    assert window.choose([0, 2], {0: 1200, 2: 1000}.__getitem__, 1000, 200) is None
    assert window.choose([0], {0: 999}.__getitem__, 1000, 200) == 0


def test_of_a_question_that_was_never_answered_and_is_too_long_nothing_is_left_in_the_way() -> None:
    """Unanswered questions are sent joined with the next; but each is a message, and may be left out."""
    said = [
        Said(False, "user", "x" * 3000, "", uuid.uuid4()), Said(False, "assistant", "", "", uuid.uuid4()),
        Said(False, "user", "Short?", "", uuid.uuid4()), Said(True, "assistant", "", "", uuid.uuid4()),
    ]  # fmt: skip
    assert window.starts(said, 0) == [0, 2]
    assert history.sent(said[2:], "") == [{"role": "user", "content": "Short?"}]


@pytest.mark.django_db
def test_a_prompt_made_before_anything_is_counted_begins_where_the_window_does() -> None:
    where = factories.conversation()
    parent = None
    ids = []
    for role, words in (("user", "One"), ("assistant", "1"), ("user", "Two"), ("assistant", "2"), ("user", "Three")):
        parent = Message.objects.create(conversation=where, role=role, text=words, parent=parent)
        ids.append(parent.pk)
    Message.objects.filter(pk=ids[3]).update(window_start=ids[2], window_context=512)
    assert [turn["content"] for turn in history.prompt(where.pk, ids[4])] == ["Two", "2", "Three"]
    assert [turn["content"] for turn in history.prompt(where.pk, ids[1])] == ["One", "1"]
    assert not Generation.objects.exists()
