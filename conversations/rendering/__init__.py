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

from conversations.rendering import markdown, sanitizing
from conversations.rendering.dressing import Dresser

VERSION = 1  # of what `render` makes of a finished text: a higher one renders stored messages again


def render(text: str, final: bool) -> list[str]:
    """The top-level blocks of `text` as safe HTML.

    `final` colours code and sets formulas (11 ms for 4 KB); without it both are shown as they are written (under 1 ms),
    for a text that is still being written: a fence that is still open is code already.
    """
    dress = Dresser(final)
    found = markdown.blocks(text)
    if found is None:
        return [sanitizing.clean(block) for block in markdown.plain_blocks(text)]
    return [block for raw in found if (block := sanitizing.clean(dress(raw)))]
