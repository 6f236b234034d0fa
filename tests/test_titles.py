"""What a conversation is called until a person names it."""

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from conversations import turns
from conversations.models import Conversation
from conversations.titles import LONGEST, NAMELESS, REQUEST, made, title_of
from tests import factories

FAMILY = "👨\u200d👩\u200d👧\u200d👦"


@pytest.mark.parametrize(
    ("message", "title"),
    [
        ("How do steam engines work?", "How do steam engines work?"),
        ("\n\n   How   do\tthey work?  \nSecond line", "How do they work?"),
        ("# Steam engines\n\nTell me.", "Steam engines"),
        ("> - [ ] **Bold**, *soft*, ~~gone~~ and `code`", "Bold, soft, gone and code"),
        ("See [the manual](https://example.org/a_b) and ![a picture](x.png)", "See the manual and a picture"),
        ("***both at once***", "both at once"),
        ("这是**重点**", "这是重点"),
        ("2*3*4, 2**3**4 and snake_case in __init__", "2*3*4, 2**3**4 and snake_case in __init__"),
        ("#hashtag and C#", "#hashtag and C#"),
        ("1. April was cold", "1. April was cold"),
        ("```python\nprint(1)\n```", "print(1)"),
        ("---\nAfter the rule", "After the rule"),
        ('"In quotes"', "In quotes"),
        ("„In Anführungszeichen“", "In Anführungszeichen"),
        ("「引用」", "引用"),
        ('"One" and "two"', '"One" and "two"'),
        ("?", "?"),
        ("😀", "😀"),
        ("```", "```"),
        ("[](https://example.org)\nNext", "Next"),
        ("\u202eturned about", "turned about"),
        ("\u200b", NAMELESS),
    ],
)
def test_the_first_line_that_says_something_without_its_marks(message: str, title: str) -> None:
    assert title_of(message) == title


@pytest.mark.parametrize(
    ("message", "title"),
    [
        ("word " * 12, "word " * 11 + "word"),
        ("word " * 13, "word " * 11 + "word…"),
        ("Between these words, there " + "is " * 20, "Between these words, there is is is is is is is is is is is…"),
        ("so " + "x" * 80, "so " + "x" * 56 + "…"),
        ("蒸汽机" * 30, "蒸汽机" * 19 + "蒸汽" + "…"),
        ("שלום עולם " * 10, "שלום עולם " * 5 + "שלום עולם…"),
        (FAMILY * 20, FAMILY * 8 + "…"),
        ("🇩🇪" * 40, "🇩🇪" * 29 + "…"),
        ("👍🏽" * 40, "👍🏽" * 29 + "…"),
        ("e\u0301" * 40, "e\u0301" * 29 + "…"),
        ("\u1112\u1161\u11ab" * 30, "\u1112\u1161\u11ab" * 19 + "…"),
        ("नमस्ते" * 20, "नमस्ते" * 9 + "नम…"),
        ("a" + "\u0301" * 200, "a" + "\u0301" * 58 + "…"),
    ],
    ids=["fits", "cut", "comma", "long-word", "chinese", "hebrew", "family", "flags", "skin", "accents", "hangul",
         "virama", "zalgo"],
)  # fmt: skip
def test_a_long_line_is_cut_at_a_word_or_else_between_two_characters(message: str, title: str) -> None:
    assert title_of(message) == title
    assert len(title) <= LONGEST


@given(st.text(min_size=1) | st.text(alphabet="*`~_#>-[]()\"'“” \n\taé👍🏽\u200d\u0301🇩字", min_size=1, max_size=300))
@example("*" * 5_000 + "a")
@example("[" * 5_000)
@example("\n" * 200_000 + "x")
def test_every_message_gets_a_title_of_one_short_line(message: str) -> None:
    title = title_of(message)
    assert title.strip()
    assert len(title) <= LONGEST
    assert len(title.splitlines()) == 1
    assert not any(unicodedata.category(c) == "Cc" for c in title)
    left = iter(" ".join(message.split()) + " ")
    assert title == NAMELESS or all(c in left for c in title.removesuffix("…")), "its letters are the message's"


@pytest.mark.parametrize(
    ("answer", "title"),
    [
        ("Steam engines", "Steam engines"),
        ("\n\n“How steam engines work.”\nIt is about", "How steam engines work"),
        ('**Title:** "Steam"', "Steam"),
        ("Titel: Dampfmaschinen", "Dampfmaschinen"),
        ("# Steam and *dragons*", "Steam and dragons"),
        ("蒸汽机", "蒸汽机"),
        ("Pointers in C++ and F#", "Pointers in C++ and F#"),
        ("And then...", "And then..."),
        ("", None),
        ("  \n ", None),
        ("…", None),
        ("```python", None),
        ("Here is a title for the conversation:", None),
        ("word " * 10, ("word " * 10).strip()),
        ("word " * 11, None),
        ("x" * 61, None),
        ("Untitled", None),
        ("Title", None),
        (REQUEST, None),
        ("Write a title for the conversation so far", None),
        ("What a delightful conversation!", None),
    ],
)
def test_a_model_s_title_is_one_line_or_none(answer: str, title: str | None) -> None:
    assert made(answer, answer) == title


@pytest.mark.parametrize(
    ("answer", "about", "whether"),
    [
        ("The Age of Steam", "How do STEAM engines work?", True),
        ("The Age of Reason", "How do steam engines work?", False),
        ("A day in May", "How do steam engines work in a day?", False),
        ("蒸汽机的历史", "蒸汽机怎么工作？", True),
        ("蒸汽机", "为什么天是蓝的？", False),
        ("Dämpfe", "Über Dampf", True),
        ("1848", "What happened in 1848?", True),
        ("🌱🌱🌱", "🌱", False),
    ],
)
def test_a_title_has_a_word_of_what_it_names(answer: str, about: str, whether: bool) -> None:
    assert made(answer, about) == (answer if whether else None)


@given(st.text(max_size=300))
@example("*" * 5_000)
@example("Title: " * 500)
def test_whatever_a_model_says_makes_one_short_line_or_none(answer: str) -> None:
    title = made(answer, answer)
    if title is not None:
        assert title.strip()
        assert len(title) <= LONGEST
        assert len(title.splitlines()) == 1
        assert not any(unicodedata.category(c) == "Cc" for c in title)


@pytest.mark.django_db
def test_the_first_message_names_its_conversation_and_later_ones_do_not() -> None:
    where = factories.conversation()
    first = factories.sent(where, "**How** do steam engines work?\nIn short, please.")
    turns.cancel(where.owner_id, first.generation.pk)
    factories.sent(where, "And dragons?")
    assert Conversation.objects.get(pk=where.pk).title == "How do steam engines work?"


@pytest.mark.django_db
def test_a_name_that_a_person_gave_stays_before_and_after_the_first_message() -> None:
    named = factories.conversation(title="Engines")
    factories.sent(named, "How do steam engines work?")
    assert Conversation.objects.get(pk=named.pk).title == "Engines"
    later = factories.conversation()
    first = factories.sent(later, "How do steam engines work?")
    turns.cancel(later.owner_id, first.generation.pk)
    Conversation.objects.filter(pk=later.pk).update(title="")
    factories.sent(later, "And dragons?")
    assert Conversation.objects.get(pk=later.pk).title == ""
