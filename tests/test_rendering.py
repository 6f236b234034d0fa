"""What answers look like: Markdown as models write it, and the markup that the page's styles and scripts rely on."""

import re
import uuid
from pathlib import Path

import pytest

from conversations import rendered, rendering
from conversations.models import Message
from conversations.rendering import render, sanitizing
from tests import factories, worker

OUT = 'target="_blank" rel="noopener noreferrer nofollow"'


def html(text: str, final: bool = True) -> str:
    return "".join(render(text, final))


def code(language: str, inside: str) -> str:
    head = f'<div class="code-head"><span>{language}</span></div>'
    return f'<div class="code">{head}<pre><code>{inside}</code></pre></div>'


def test_each_block_is_an_element_of_its_own() -> None:
    assert render("# One\n\nTwo\n\n- three\n- four\n\n> five\n\n***\n", final=True) == [
        "<h1>One</h1>",
        "<p>Two</p>",
        '<ul dir="auto">\n<li>three</li>\n<li>four</li>\n</ul>',
        '<blockquote dir="auto">\n<p>five</p>\n</blockquote>',
        "<hr>",
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "**bold** *slanted* `code` ~~old~~",
            "<strong>bold</strong> <em>slanted</em> <code>code</code> <del>old</del>",
        ),
        ("one\ntwo", "one<br>\ntwo"),
        ("a < b & c > d", "a &lt; b &amp; c &gt; d"),
        ("[x](https://x.test/?a=1&b=2)", f'<a href="https://x.test/?a=1&amp;b=2" {OUT}>x</a>'),
        ("https://x.test/a", f'<a href="https://x.test/a" {OUT}>https://x.test/a</a>'),
        ("[x](mailto:a@x.test)", f'<a href="mailto:a@x.test" {OUT}>x</a>'),
        ("[x](javascript:alert(1)) [y](/admin/)", "x y"),
        ("[**x**](#there)", "<strong>x</strong>"),
        ("it costs $5 and $10", "it costs $5 and $10"),
        ("*a* <b>b</b>", "<em>a</em> &lt;b&gt;b&lt;/b&gt;"),
    ],
)
def test_words_within_a_paragraph(text: str, shown: str) -> None:
    assert html(text) == html(text, final=False) == f"<p>{shown}</p>"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("![a cat](https://x.test/cat.png)", f'<a href="https://x.test/cat.png" {OUT}>a cat</a>'),
        ("![](https://x.test/cat.png)", f'<a href="https://x.test/cat.png" {OUT}>https://x.test/cat.png</a>'),
        ("![a cat](cat.png)", "a cat"),
        ("[![a cat](https://x.test/cat.png)](https://y.test/)", f'<a href="https://y.test/" {OUT}>a cat</a>'),
    ],
)
def test_a_picture_is_a_link_and_never_loaded(text: str, shown: str) -> None:
    assert html(text) == f"<p>{shown}</p>"


def test_a_table_is_in_a_box_that_scrolls_and_aligned_as_it_says() -> None:
    shown = html("| a | b |\n|:-:|--:|\n| 1 | 2 |")
    assert shown.startswith('<div class="md-table"><table dir="auto">')
    assert shown.endswith("</table></div>")
    assert '<th align="center">a</th>' in shown
    assert '<td align="right">2</td>' in shown


def test_tasks_are_signs_and_no_fields() -> None:
    assert html("- [ ] a\n- [x] b") == (
        '<ul dir="auto">\n<li><span class="md-task">☐</span> a</li>\n<li><span class="md-task">☑</span> b</li>\n</ul>'
    )


def test_a_list_begins_where_it_says() -> None:
    assert html("3. c\n4. d").startswith('<ol start="3" dir="auto">')


def test_code_names_its_language_and_has_colours_at_the_end() -> None:
    text = '```python title="x"\ndef f(): # <b>\n    return "a"\n```'
    assert html(text, final=False) == code("python", 'def f(): # &lt;b&gt;\n    return "a"\n')
    assert html(text) == code(
        "python",
        '<span class="md-keyword">def</span> <span class="md-name">f</span>(): '
        '<span class="md-comment"># &lt;b&gt;</span>\n'
        '    <span class="md-keyword">return</span> <span class="md-string">"a"</span>\n',
    )


@pytest.mark.parametrize("text", ["```\nx = 1\n```", "    x = 1"])
def test_code_without_a_language_is_plain(text: str) -> None:
    assert html(text) == html(text, final=False) == code("", "x = 1\n")


def test_code_of_an_unknown_language_is_plain_and_keeps_its_name() -> None:
    assert html("```Brainf***\n+-[>]\n```") == code("Brainf***", "+-[&gt;]\n")


def test_names_that_models_put_on_code_are_known() -> None:
    for name in ("js", "ts", "sh", "yml", "c++", "c#", "Dockerfile", "PY", "html", "console"):
        assert "md-" in html(f'```{name}\nif x: echo "1" # 2 <b a="c">// 3\nFROM a\na: 1\n```'), name


@pytest.mark.parametrize("end", ["", "\n", "\n```", "\n``"])
def test_an_open_fence_is_code_while_it_is_written(end: str) -> None:
    assert html(f"```python\nx = *1*{end}", final=False).startswith(code("python", "x = *1*")[:-20])


def test_what_was_shown_while_a_text_grows_stays() -> None:
    """Only the last block changes with each word, so only that is sent again."""
    text = (Path(__file__).parent.parent / "README.md").read_text()[:3_000]
    before: list[str] = []
    for end in range(0, len(text), 7):
        blocks = render(text[:end], final=False)
        assert blocks[: len(before) - 1] == before[:-1], text[max(0, end - 100) : end]
        before = blocks


def test_a_list_after_a_line_is_never_a_heading() -> None:
    assert "<h" not in html("Here it is:\n-", final=False)
    assert "<h2" not in html("Here it is:\n---\nmore")


@pytest.mark.parametrize("text", ["$x^2$", "\\(x^2\\)"])
def test_a_formula_is_mathml_at_the_end_and_its_source_before(text: str) -> None:
    assert html(text, final=False) == '<p><code class="md-math">x^2</code></p>'
    assert html(text) == '<p><math display="inline"><mrow><msup><mi>x</mi><mn>2</mn></msup></mrow></math></p>'


@pytest.mark.parametrize("text", ["$$\nx^2\n$$", "\\[\nx^2\n\\]", "$$x^2$$"])
def test_a_displayed_formula_is_in_a_box_that_scrolls(text: str) -> None:
    assert html(text, final=False) == '<p><span class="md-formula"><code class="md-math">x^2</code></span></p>'
    assert html(text).startswith('<p><span class="md-formula"><math display="block">')


@pytest.mark.parametrize("source", ["\\frac{", "x^", "\\left(", "\\begin{matrix}", "\\def\\a{b}\\a", "x" * 1_501])
def test_what_is_no_formula_is_shown_as_it_is(source: str) -> None:
    assert html(f"\\({source}\\)") == f'<p><code class="md-math">{source}</code></p>'


def test_a_formula_stays_where_it_is() -> None:
    """Lengths that would push it over the page are left out."""
    shown = html("$a \\hspace{999em} \\hspace{-50em} \\raise{50em}{b} \\hspace{1em} c$")
    assert re.findall(r'\w+="[^"]*em"', shown) == ['width="1em"']


def test_raw_html_is_shown_as_the_text_it_is() -> None:
    assert render("<div>\n  <b>x</b>\n</div>\n\ntext", final=True) == [
        '<p class="md-raw">&lt;div&gt;\n  &lt;b&gt;x&lt;/b&gt;\n&lt;/div&gt;</p>',
        "<p>text</p>",
    ]


def test_every_class_has_its_style() -> None:
    style = (Path(rendering.__file__).parent.parent / "static/chat/markdown.css").read_text()
    for name in sorted(set().union(*sanitizing.CLASSES.values())):
        assert f".{name}" in style, name


@pytest.fixture
def renderings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that are rendered from here on."""
    texts: list[str] = []

    def counted(text: str, final: bool) -> list[str]:
        texts.append(text)
        return render(text, final)

    monkeypatch.setattr(rendering, "render", counted)
    return texts


def test_what_two_ask_for_is_rendered_once(renderings: list[str]) -> None:
    text = f"*{uuid.uuid4()}*"
    first = rendered.live(text)
    first.append("mine")
    assert rendered.live(text) == render(text, final=False)
    assert renderings == [text]


@pytest.mark.django_db
def test_a_finished_answer_is_rendered_once_and_stored(renderings: list[str]) -> None:
    claim = factories.running()
    factories.wrote(claim, text := f"*{uuid.uuid4()}*")
    worker.finish(claim)
    wanted = render(text, final=True)
    assert rendered.finished(claim.message, text) == wanted
    rendered._made.cache_clear()
    assert rendered.finished(claim.message, text) == wanted
    assert renderings == [text]


@pytest.mark.django_db
def test_html_of_a_text_that_changed_meanwhile_is_not_stored() -> None:
    claim = factories.running()
    factories.wrote(claim, "the present text")
    worker.finish(claim)
    assert rendered.finished(claim.message, "an older text") == ["<p>an older text</p>"]
    assert Message.objects.get(pk=claim.message).html is None
