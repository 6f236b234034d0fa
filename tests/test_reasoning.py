"""Thoughts are streamed, stored, and sent back in the same bytes each time, so that the cache has them."""

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversations import history, sending, turns
from conversations.history import GenerationView
from conversations.models import Conversation, Generation
from slots import leases
from slots.control_tokens import BREAK
from slots.models import Slot
from tests import factories
from tests.answers import ended
from tests.eventually import eventually
from tests.fake_llama import FakeLlama, Script
from tests.scripted import tokens
from tests.stack import StartProcess

THOUGHTS = "\n Two and two are <|im_end|> what they are, \u202eא👩🏽‍🚀. \n" * 6


def answered(where: Conversation, words: str) -> GenerationView:
    view = ended(sending.send(where.owner_id, where.pk, uuid.uuid4(), words, None, to_leaf=True), 60)
    assert view.status == "done", view.error
    eventually(lambda: not Slot.objects.filter(phase="busy").exists())
    return view


def figures(view: GenerationView) -> tuple[str | None, int]:
    assert view.timings
    return view.timings["replay_cause"], view.timings["prompt_n"]


@pytest.mark.django_db(transaction=True)
def test_what_was_thought_in_the_first_turn_is_sent_in_the_same_bytes_in_every_later_one(
    start_worker: StartProcess,
) -> None:
    """With a model whose template writes it the cache holds; one that leaves it out costs the answer, and says so."""
    for keeps in (True, False):
        with FakeLlama(keeps_thoughts=keeps) as server:
            said = THOUGHTS.replace("<|", f"<{BREAK}|")  # by a model that repeats how it was shown the word
            server.script(Script(text="Four.", reasoning=said, match="2 + 2"))
            worker = start_worker(LLAMA_SERVERS=server.url)
            where = factories.conversation(system_prompt="Think first.")
            first = answered(where, "2 + 2?")
            assert (first.reasoning, first.text) == (THOUGHTS, "Four.")
            later = [answered(where, words) for words in ("Sure?", "Really?")]
            slot = Slot.objects.get(holder=where.pk)
            leases.evict(slot.pk, slot.fence)
            replayed = answered(where, "Once more?")
            turn = [record.body["messages"] for record in server.requests if not record.raw]
            begun = turn[1][:3]
            assert [message["role"] for message in begun] == ["system", "user", "assistant"]
            assert begun[:2] == turn[0]
            assert [messages[:3] for messages in turn[1:]] == [begun] * 3
            (second, second_n), (third, third_n) = map(figures, later)
            assert (second, third, figures(replayed)[0]) == (None if keeps else "template", None, "evicted")
            assert (second_n < 15) == keeps
            assert third_n < 15
            worker.kill()


@pytest.mark.django_db
def test_an_answer_that_only_thought_is_left_out_and_goes_on_where_it_was() -> None:
    claim = factories.running(factories.conversation(), on := factories.server())
    factories.wrote(claim, "Hm, let me ", part=1)
    where = Conversation.objects.get(pk=claim.conversation)
    assert history.prompt(where.pk, claim.message)[-1] == {
        "role": "assistant", "content": "", "reasoning_content": "Hm, let me ",
    }  # fmt: skip
    turns.finish(claim, turns.Ending(Generation.Status.CANCELLED))
    leases.release(claim.grant, 1, 1)
    factories.sent(where, "And?")
    second = turns.claim(factories.WORKER, [on.pk])
    assert second is not None
    assert history.prompt(where.pk, second.message) == [
        {"role": "user", "content": "How do steam engines work?\n\nAnd?"},
    ]


WORDS = st.text(max_size=12) | st.sampled_from(
    ["<|im_end|>", "<think>", "</think>\n", " ", "\n\n", "\u200b", "e\u0301"]
)
TURN = st.tuples(WORDS.filter(str.strip), WORDS, WORDS)


@given(st.lists(TURN, min_size=1, max_size=6), st.booleans())
def test_the_prompt_of_a_turn_begins_with_that_of_every_turn_before(
    said: list[tuple[str, str, str]], keeps: bool
) -> None:
    """Message by message the same; the last question goes on only where nothing was answered to it."""

    def prompt(until: int) -> list[dict[str, str]]:
        rows: list[tuple[bool, str, str, str]] = []
        for question, thought, text in said[:until]:
            rows += [(False, "user", question, ""), (False, "assistant", text, thought)]
        rows[-1] = (True, "assistant", "", "")
        return history.told(rows)

    def rendered(messages: list[dict[str, str]]) -> str:
        return tokens.render(messages, generation_prompt=False, keeps=keeps)

    whole = prompt(len(said))
    for until in range(1, len(said)):
        part = prompt(until)
        *before, asked = part
        assert whole[: len(before)] == before
        same = whole[len(before)]
        if said[until - 1][2]:
            assert same == asked
            assert rendered(whole).startswith(rendered(part))
        else:
            assert same["content"].startswith(f"{asked['content']}\n\n")


def test_every_message_reaches_the_server_as_it_was_said() -> None:
    """But for the breaks within control tokens, which depend on the text alone."""
    rows: list[Any] = [(False, "user", "  a\n", ""), (False, "assistant", "\tb ", " \n c"), (True, "assistant", "", "")]
    assert history.told(rows) == [
        {"role": "user", "content": "  a\n"},
        {"role": "assistant", "content": "\tb ", "reasoning_content": " \n c"},
    ]
