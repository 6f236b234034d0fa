"""Rendering ends soon, whatever the text: each of these shapes kept some part of the way busy for seconds or minutes.

The bounds are of size, count and depth; if one did not hold, the time-out of a test would be reached.
"""

import re
from itertools import accumulate, pairwise

import pytest

from conversations.rendering import highlighting, markdown, render
from tests import xss

pytestmark = pytest.mark.timeout(60)

SHAPES = {
    "quotes": ">",
    "spaced quotes": "> ",
    "items": "- ",
    "numbers": "1. ",
    "quotes and items": "> - ",
    "brackets": "[",
    "pictures": "![",
    "open links": "[a](",
    "open addresses": "[a](<b",
    "emphasis": "*a **a ",
    "crossed emphasis": "a**b" + "c* ",
    "nested emphasis": "*_",
    "strikes": "~a~~",
    "dollars": "$a",
    "double dollars": "$$a",
    "open formulas": "\\(",
    "open displays": "\\[a",
    "formulas": "$a_b$ ",
    "fractions": "$\\frac{a}{b}$ ",
    "tags": "<a ",
    "comments": "<!--",
    "sections": "<![CDATA[",
    "instructions": "<?",
    "declarations": "<!A",
    "less": "<",
    "ampersands": "&",
    "entities": "&amp;",
    "small tables": "|a|\n|-|\n\n",
    "tables of one column": "a\n-\n",
    "pipes": "|",
    "definitions": "[a]: /u\n",
    "addresses": "www.",
    "schemes": "http://",
    "mail": "a.b-@",
    "line ends": "\n",
    "lines": "a\n",
    "fences": "```\n",
    "code": "```python\nx = 'a' + b(1)\n```\n",
    "headings": "# a\n",
    "tasks": "- [ ] a\n",
    "rules": "***\n",
    "backslashes": "\\",
    "ticks": "`",
    "controls": "\x01",
    "letters": "x",
}


def depth(block: str) -> int:
    steps = (0 if void else -1 if closes else 1 for closes, void in re.findall(r"<(/?)(br|hr)?", block))
    return max(accumulate(steps))


def check(text: str) -> None:
    for final in (False, True):
        blocks = render(text, final)
        assert sum(map(len, blocks)) <= 10 * markdown.LONGEST_HTML
        for block in blocks[:50]:
            xss.check(block)
            assert depth(block) <= markdown.DEEPEST + 2


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_repeated_is_rendered_within_bounds(shape: str) -> None:
    for size in (4_000, markdown.LONGEST):
        check(SHAPES[shape] * (size // len(SHAPES[shape])))


@pytest.mark.parametrize(
    "text",
    [
        "|" + "a|" * 2_000 + "\n|" + "-|" * 2_000 + "\n" + "x\n" * 4_000,
        "[" * 8_000 + "]" * 8_000,
        "[a](" * 4_000 + ")" * 4_000,
        "*_" * 8_000 + "a" + "_*" * 8_000,
        "".join("`" * length + " " for length in range(300)),
        "[a]: http://x.test/" + "u" * 10_000 + "\n\n" + "[a]" * 10_000,
        "\n".join("  " * level + "- a" for level in range(200)),
        "\n".join(">" * level + " a" for level in range(200)),
        "".join(f"{' ' * 3 * level}1. a\n" for level in range(120)),
        "$" + "\\sqrt" * 280 + "$",
        "$" + "{" * 1_400 + "$",
        "$" + "\\left(" * 230 + "$",
        "$\\newcommand{\\a}{xx}"
        + "".join(f"\\newcommand{{\\{b}}}{{\\{a}\\{a}}}" for a, b in pairwise("abcdefghi"))
        + "\\i$",
    ],
    ids=[
        "wide table",
        "links",
        "addresses",
        "emphasis",
        "ticks",
        "references",
        "items",
        "quotes",
        "numbers",
        "roots",
        "braces",
        "delimiters",
        "macros",
    ],
)
def test_what_grows_with_its_square_is_bounded(text: str) -> None:
    check(text)


@pytest.mark.parametrize("unit", ["//", '\\"', "a.", "a<", "public ", "&", "'<!--", " \n", "int a, ", "0."])
def test_no_language_can_be_kept_busy(unit: str) -> None:
    """Each of these kept some lexer busy for minutes; the lines are short enough to be coloured."""
    line = unit * (highlighting.LONGEST_LINE // len(unit) - 1)
    for language in highlighting.LANGUAGES:
        (block,) = render(f"~~~{language}\n{line}\n{line}\n{line}\n~~~", final=True)
        assert len(block) > len(line)


def test_a_text_too_long_for_markdown_is_shown_as_it_is_in_pieces_that_stay() -> None:
    text = "".join(f"Line *{number}* of <many>\n" for number in range(6_000))
    assert len(text) > markdown.LONGEST
    blocks = render(text, final=True)
    assert all(block.startswith('<pre class="md-plain">') and len(block) < 10_000 for block in blocks)
    shown = "".join(block.removeprefix('<pre class="md-plain">').removesuffix("</pre>") for block in blocks)
    assert shown == text.replace("<", "&lt;").replace(">", "&gt;")
    assert render(text + "more", final=False)[: len(blocks) - 1] == blocks[:-1]


def test_nothing_becomes_of_nothing() -> None:
    for text in ("", " ", "\n\n", "\x00"[:0], "\x01"):
        assert render(text, final=True) == render(text, final=False) == []
