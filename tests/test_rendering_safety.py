"""Whatever a model writes, only harmless HTML comes of it."""

import html
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conversations.rendering import render, sanitizing
from tests import xss

CORPUS = xss.corpus()
AROUND = {
    "plain": "{}",
    "after text": "Some words {} and more",
    "item": "- one\n- {}\n",
    "quote": "> {}",
    "cell": "| a | b |\n|---|---|\n| {} | x |",
    "heading": "## {}",
    "link": "[{}](https://ok.test)",
    "address": "[x]({})",
    "picture": "![{}](https://ok.test/x.png)",
    "strong": "**{}**",
    "fence": "```{}\nx\n```",
    "code": "```python\n{}\n```",
    "open code": "```html\n{}",
    "formula": "${}$",
    "display": "$$\n{}\n$$",
    "text in a formula": "\\(\\text{{{}}}\\)",
    "reference": "[x]\n\n[x]: {}",
}
# Pieces that mean something to Markdown, LaTeX or HTML, thrown together.
PIECES = st.sampled_from(
    ["<", ">", "&", '"', "'", "`", "```", "~~~", "\n", "\n\n", "    ", "- ", "1. ", "> ", "# ", "|", "|-|", "\n|-|-|\n",
     "[", "]", "(", ")", "](", "![", "]: ", "<!--", "-->", "<![CDATA[", "]]>", "<?", "*", "**", "_", "~~", "$", "$$",
     "\\(", "\\)", "\\[", "\\]", "\\", "{", "}", "\\text{", "\\frac", "\\left(", "\\begin{matrix}", "&", "^", "\\href{",
     "</", "/>", "<a href=", "<img src=x onerror=", "<script>", "</script>", "<style>", "<math>", "<svg>", "<mtext>",
     "</p>", "</code></pre>", "javascript:", "data:", "https://x.test/", "www.x.test", "x@x.test", "&lt;", "&#60;",
     "&colon;", "python", "html\n", "[ ] ", "[x] ", "[^1]", "\x00", "\u2028", "\u202e", "\r", "\t", "x", " ", "é", "字"]
)  # fmt: skip
HOSTILE = st.lists(PIECES | st.sampled_from(CORPUS) | st.text(max_size=5), max_size=25).map("".join)
PROSE = st.lists(st.text(st.characters(categories=("L", "N")), min_size=1, max_size=12), min_size=1, max_size=30)


def check(text: str) -> None:
    for final in (False, True):
        for block in render(text, final):
            try:
                xss.check(block)
            except xss.Unsafe as error:
                raise AssertionError(f"{error}\nfrom {text!r}\nin   {block!r}") from error
            # html5ever parses as browsers do: what it reads again as something else would mutate in a page.
            assert sanitizing.clean(block) == block


def test_the_corpus_is_large_and_of_many_kinds() -> None:
    assert len(CORPUS) == len(set(CORPUS)) >= 300
    for kind in ("<script", "<svg", "annotation-xml", "javascript:", "data:", "srcdoc", "<style", "http-equiv", "<base",
                 "formaction", "autofocus", "<template", "CDATA", "<!--", "getElementById", "```", "\\href", "\x1b",
                 "\u2028", "\u202e", "\x00", "[^1]", "|:-"):  # fmt: skip
        assert any(kind in entry for entry in CORPUS), kind


@pytest.mark.parametrize("around", AROUND)
def test_every_text_of_the_corpus_is_harmless(around: str) -> None:
    for entry in CORPUS:
        check(AROUND[around].format(entry))


def test_every_beginning_of_a_text_is_harmless_while_it_is_written() -> None:
    for entry in CORPUS[::4]:
        for end in range(len(entry)):
            for block in render(entry[:end], final=False):
                xss.check(block)


def test_the_whole_corpus_as_one_text_is_harmless() -> None:
    check("\n\n".join(CORPUS))
    check(" ".join(CORPUS))


@settings(max_examples=400, deadline=None)
@given(HOSTILE)
def test_any_hostile_text_is_harmless(text: str) -> None:
    check(text)


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_any_text_at_all_is_harmless(text: str) -> None:
    check(text)


@settings(max_examples=300, deadline=None)
@given(PROSE)
@example(["1", "2"])
def test_no_letter_of_prose_is_lost(words: list[str]) -> None:
    """Also letters that only look like one of Markdown's marks, of any script."""
    text = " ".join(words)
    for final in (False, True):
        shown = html.unescape(re.sub(r"<[^>]*>", "", "".join(render(text, final))))
        assert shown.split() == text.split()


def test_whatever_is_inside_code_is_shown_as_it_is() -> None:
    for entry in CORPUS:
        code = "".join(character for character in entry if character in "\n\t" or character.isprintable())
        if "~~~" in code:
            continue
        for final in (False, True):
            for language in ("", "python", "html"):
                (block,) = render(f"~~~~{language}\n{code}\n~~~~", final)
                inside = block.partition("<pre><code>")[2].removesuffix("</code></pre></div>")
                assert html.unescape(re.sub(r"<[^>]*>", "", inside)) == f"{code}\n"


@pytest.mark.parametrize(
    "block",
    [
        "<script>x</script>",
        "<p><img src=x></p>",
        '<p onclick="x">a</p>',
        '<p id="composer">a</p>',
        '<p class="sidebar">a</p>',
        '<p style="color:red">a</p>',
        '<p><a href="javascript:x" target="_blank" rel="noopener noreferrer nofollow">a</a></p>',
        '<p><a href="https://x.test">a</a></p>',
        "<p>a</p><p>b</p>",
        "<p>a",
        "a</p>",
        "<p>a</p> tail",
        "<p><!-- x --></p>",
        "<p>a<b</p>",
        '<math><mspace width="9999em"></mspace></math>',
        "<math><annotation-xml></annotation-xml></math>",
        '<math><mi href="https://x.test">x</mi></math>',
        "",
    ],
)
def test_the_check_finds_what_is_unsafe(block: str) -> None:
    with pytest.raises(xss.Unsafe):
        xss.check(block)
