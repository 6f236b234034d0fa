"""Markdown, as models write it, to HTML that is safe in a page.

    comrak (Markdown; raw HTML escaped) -> our markup for code, formulas, links, tables -> nh3, always last

What is promised, for any text at all:

- Only the elements, attributes, classes and schemes that `sanitizing` lists, no ids or names; nothing is loaded from
  anywhere, links leave with `rel="noopener noreferrer nofollow"` in a page of their own.
- Each block is one element, well formed and sanitized on its own: a page may replace any of them alone.
- The work is bounded: what is too long, too deep or grows too much is shown as the text it is.
- No letter of prose is lost; Markdown's own marks are.

A picture becomes a link: its address alone would carry away what a model put into it.
"""

import functools

from conversations.rendering import markdown, sanitizing
from conversations.rendering.dressing import Dresser

VERSION = 1  # of what `render` makes of a finished text: a higher one renders stored messages again
MOST_KEPT = 2_048  # blocks of texts being written
LONGEST_KEPT = 4_000  # code points


def render(text: str, final: bool) -> list[str]:
    """The top-level blocks of `text` as safe HTML.

    `final` colours code and sets formulas (about 10 ms for 4 KB); without it both are shown as they are written (under
    1 ms), for a text that is still being written: a fence that is still open is code already.
    """
    raw = markdown.blocks(text)
    if raw is None:
        return [sanitizing.clean(block) for block in markdown.plain_blocks(text)]
    dress = Dresser(final=True) if final else None
    made = (sanitizing.clean(dress(block)) if dress else _live(block) for block in raw)
    return [block for block in made if block]


def _live(raw: str) -> str:
    """Most blocks of a text being written are those of the moment before."""
    return _kept(raw) if len(raw) <= LONGEST_KEPT else _kept.__wrapped__(raw)


@functools.lru_cache(MOST_KEPT)
def _kept(raw: str) -> str:
    return sanitizing.clean(Dresser(final=False)(raw))
