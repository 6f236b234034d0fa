"""What must be found again in a cache, and why something is not: by what was noted of the turn before."""

import pytest

from conversations.outline import Messages, Outline

SYSTEM = {"role": "system", "content": "Be brief."}
FIRST, LAST, OTHER = ({"role": "user", "content": words} for words in ("One?", "Two?", "Two and a half?"))
SAID, AGAIN = ({"role": "assistant", "content": words} for words in ("A long first answer.", "A second answer."))
HELD = 260  # 100 tokens up to the first question, 180 up to the second, 80 of the second answer

FIRST_TURN = Outline().followed_by([SYSTEM, FIRST], SAID, 100, 150)
SECOND_TURN = FIRST_TURN.followed_by([SYSTEM, FIRST, SAID, LAST], AGAIN, 180, HELD)


@pytest.mark.parametrize(
    ("asked", "cache", "cause"),
    [
        ([SYSTEM, FIRST, SAID, LAST, AGAIN, OTHER], 260, None),  # it goes on
        ([SYSTEM, FIRST, SAID, LAST, AGAIN, OTHER], 250, None),  # the end of the answer is read in other tokens
        ([SYSTEM, FIRST, SAID, LAST, AGAIN, OTHER], 200, None),  # or most of it
        ([SYSTEM, FIRST, SAID, LAST, AGAIN, OTHER], 176, "template"),  # the answer is written otherwise
        ([SYSTEM, FIRST, SAID, LAST, AGAIN, OTHER], 30, "cache_lost"),  # nothing but what every prompt begins with
        ([SYSTEM, FIRST, SAID, LAST], 179, None),  # another answer to the same question
        ([SYSTEM, FIRST, SAID, LAST], 0, "cache_lost"),  # from a model that cannot go back within its cache
        ([SYSTEM, FIRST], 99, None),  # another answer to an earlier question
        ([SYSTEM, FIRST, SAID, OTHER], 150, None),  # the last question in other words
        ([SYSTEM, FIRST, SAID, OTHER, AGAIN, LAST], 150, "branch"),  # back to what went on from another question
        ([SYSTEM, FIRST, SAID, OTHER, AGAIN, LAST], 10, "cache_lost"),
        ([SYSTEM | {"content": "Be verbose."}, FIRST, SAID, LAST, AGAIN, OTHER], 4, "settings"),
        ([SYSTEM | {"content": "Be verbose."}, FIRST, SAID, LAST], 4, "settings"),
        ([FIRST, SAID, LAST, AGAIN, OTHER], 4, "settings"),  # it was taken away
        ([SYSTEM, FIRST, SAID | {"reasoning_content": "Hm."}, LAST, AGAIN, OTHER], 110, "branch"),  # another answer
        ([FIRST], 0, "settings"),
    ],
)
def test_what_is_read_again_has_its_cause(asked: Messages, cache: int, cause: str | None) -> None:
    noted = Outline.read(SECOND_TURN.noted())
    assert noted == SECOND_TURN
    assert noted.cause(asked, cache, HELD) == cause


def test_of_a_prompt_that_was_not_read_to_its_end_only_that_part_is_expected() -> None:
    stopped = Outline().followed_by([SYSTEM, FIRST], SAID | {"content": ""}, 100, 64)
    joined = {"role": "user", "content": f"{FIRST['content']}\n\n{LAST['content']}"}
    assert stopped.cause([SYSTEM, joined], 64, 64) is None
    assert stopped.cause([SYSTEM, FIRST], 64, 64) is None
    assert stopped.cause([SYSTEM, FIRST], 0, 64) == "cache_lost"


def test_an_answer_that_is_gone_on_with_belongs_to_the_same_prompt() -> None:
    part = {"role": "assistant", "content": "A long"}
    continued = Outline().followed_by([SYSTEM, FIRST, part], SAID, 110, 150)
    assert (continued.prompt[-1][0], continued.answer) == (FIRST_TURN.prompt[-1][0], FIRST_TURN.answer)


def test_without_a_note_nothing_is_said() -> None:
    assert Outline.read(None).cause([FIRST, SAID, LAST], 0, 100) is None


def test_what_the_template_is_told_beside_the_messages_is_a_setting_where_it_writes_it_at_the_beginning() -> None:
    asked = [SYSTEM, FIRST, SAID, LAST, AGAIN, OTHER]
    assert SECOND_TURN.cause(asked, HELD, HELD, {"enable_thinking": False}) is None
    assert SECOND_TURN.cause(asked, 8, HELD, {"reasoning_effort": "high"}) == "settings"
    told = FIRST_TURN.followed_by(asked[:4], AGAIN, 180, HELD, {"reasoning_effort": "high"})
    assert told.cause(asked, 8, HELD, {"reasoning_effort": "high"}) == "cache_lost"
    assert told.cause(asked, 8, HELD) == "settings"
    before = Outline.read({"prompt": SECOND_TURN.prompt, "answer": SECOND_TURN.answer})  # from before it was noted
    assert before.cause(asked, 8, HELD, {"reasoning_effort": "high"}) == "cache_lost"


def test_it_ends_with_what_is_shown_only_where_nothing_of_another_version_is_behind_it() -> None:
    assert SECOND_TURN.ends_with([SYSTEM, FIRST, SAID, LAST, AGAIN])
    assert FIRST_TURN.ends_with([SYSTEM, FIRST, SAID])
    assert Outline().followed_by([SYSTEM], SAID | {"content": ""}, 20, 20).ends_with([SYSTEM])
    for other in ([SYSTEM, FIRST, SAID], [SYSTEM, FIRST, SAID, LAST], [SYSTEM, FIRST, SAID, LAST, SAID]):
        assert not SECOND_TURN.ends_with(other)


def test_that_a_question_is_opened_is_noted_until_something_else_is_read() -> None:
    opened = FIRST_TURN.opened_behind("a message")
    assert Outline.read(opened.noted()) == opened
    assert opened.in_front(150).opened is None
    assert opened.followed_by([SYSTEM, FIRST, SAID, LAST], AGAIN, 180, HELD) == SECOND_TURN
