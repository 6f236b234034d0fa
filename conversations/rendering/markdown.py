"""comrak within bounds: a text's top-level blocks as raw HTML, or None for what had better be shown as plain text."""

import html
import re
from collections.abc import Iterator

import comrak

LONGEST = 50_000  # code points; an answer of 8,192 tokens has about 35,000
LONGEST_HTML = 150_000
DEEPEST = 100  # elements; browsers flatten what is deeper than 512, and parsing takes the square of the depth
MOST_CELLS = 10_000  # comrak fills up short rows: a wide head over many lines grows with their product
MOST_SEARCHING = 5_000_000  # `\(` without an end makes it search the rest of the text, each time
PLAIN_BLOCK = 4_000  # code points; a long text that grows is sent again only from its last block on

EXTENSIONS = ("autolink", "math_dollars", "math_latex", "strikethrough", "table", "tasklist")

# Unprintable, and without meaning in a page; NUL is replaced by comrak.
_CONTROLS = dict.fromkeys([*range(1, 9), 11, 12, *range(14, 32), *range(127, 160)])
_TAG = re.compile(r"<(/?)[a-z][a-z0-9]*[^>]*?(/?)>")


def blocks(text: str) -> list[str] | None:
    """One element each, in the words of comrak; None when `text` goes beyond the bounds."""
    text = text.translate(_CONTROLS)
    if len(text) > LONGEST:
        return None
    raw = comrak.render_markdown(text, _extensions(text), _PARSE, _RENDER)
    if len(raw) > LONGEST_HTML:
        return None
    try:
        return list(_top_level(raw))
    except _TooDeep:
        return None


def plain_blocks(text: str) -> Iterator[str]:
    """`text` as it is, in pieces that end with a line where there are lines."""
    text = text.translate(_CONTROLS)
    start = 0
    while start < len(text):
        end = text.rfind("\n", start, start + PLAIN_BLOCK) + 1
        end = end if end > start and len(text) - start > PLAIN_BLOCK else start + PLAIN_BLOCK
        yield f'<pre class="md-plain">{html.escape(text[start:end], quote=False)}</pre>'
        start = end


class _TooDeep(Exception):
    pass


def _top_level(raw: str) -> Iterator[str]:
    depth = start = end = 0
    for tag in _TAG.finditer(raw):
        closes, alone = tag.groups()
        if depth == 0:
            yield from _loose(raw[end : tag.start()])
            start = tag.start()
        depth += 0 if alone else -1 if closes else 1
        if depth > DEEPEST:
            raise _TooDeep
        if depth == 0:
            end = tag.end()
            yield raw[start:end]
    yield from _loose(raw[end:])


def _loose(words: str) -> Iterator[str]:
    """A block of raw HTML: comrak escapes it and puts nothing around it."""
    if words := words.strip("\n"):
        yield f'<p class="md-raw">{words}</p>'


def _extensions(text: str) -> comrak.ExtensionOptions:
    """All but those that would take too long over this text."""
    options = comrak.ExtensionOptions()
    for name in EXTENSIONS:
        setattr(options, name, True)
    openings = text.count("\\(") + text.count("\\[")
    options.math_latex = openings * len(text) < MOST_SEARCHING
    lines = [line for line in text.split("\n") if line]
    widest = max((line.count("|") for line in lines), default=0)
    options.table = widest * len(lines) < MOST_CELLS
    return options


def _parse_options() -> comrak.ParseOptions:
    options = comrak.ParseOptions()
    # While a list is written, its first "-" under a line would make that line a heading for a moment.
    options.ignore_setext = True
    return options


def _render_options() -> comrak.RenderOptions:
    options = comrak.RenderOptions()
    options.escape = True
    options.hardbreaks = True  # models end lines where they mean it
    return options


_PARSE = _parse_options()
_RENDER = _render_options()
