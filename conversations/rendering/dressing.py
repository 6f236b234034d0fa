"""Our markup where comrak's would not do: code with a head, formulas, links that leave, tables that scroll.

Works on comrak's HTML, in which every `<` and `>` is a tag's: text and attributes come escaped. What it makes is
sanitized afterwards like everything else.
"""

import html
import re
from collections.abc import Callable

from conversations.rendering import formulas, highlighting
from conversations.rendering.budget import Budget

_PARTS = re.compile(
    r'<pre><code(?: class="language-(?P<language>[^">]*)")?[^>]*>(?P<code>[^<]*)</code></pre>'
    r'|<span data-math-style="inline">(?P<formula>[^<]*)</span>'
    r'|(?:<br />\n)?<span data-math-style="display">(?P<display>[^<]*)</span>(?:<br />\n)?'
    r'|<img src="(?P<src>[^"]*)" alt="(?P<alt>[^"]*)"[^>]*/>'
    r'|<a href="(?P<href>[^"]*)"[^>]*>'
    r"|(?P<link_end></a>)"
    r"|<input (?P<task>[^>]*)/> ?"
    r"|(?P<table></?table>)"
)
# `https:x` would lead somewhere into this site.
_LEADS_OUT = re.compile(r"https?://[^/]|mailto:.", re.IGNORECASE)
SECONDS = 0.1  # of a processor, on the colours and formulas of one text
LONGEST_LANGUAGE = 30  # shown; code points


class Dresser:
    """One text's; what is spent on colours and formulas is counted over all its blocks."""

    def __init__(self, final: bool) -> None:
        self._final = final
        self._links: list[bool] = []  # of the links that are open, whether each is shown as one
        budget = Budget(SECONDS)
        self._colours = highlighting.Allowance(budget)
        self._formulas = formulas.Allowance(budget)
        self._makers: dict[str, Callable[[re.Match[str]], str]] = {
            "code": self._code,
            "formula": self._formula,
            "display": self._display,
            "alt": self._picture,
            "href": self._link,
            "link_end": self._link_end,
            "task": self._task,
            "table": self._table,
        }

    def __call__(self, raw: str) -> str:
        return _PARTS.sub(self._dress, raw)

    def _dress(self, part: re.Match[str]) -> str:
        assert part.lastgroup
        return self._makers[part.lastgroup](part)

    def _code(self, part: re.Match[str]) -> str:
        language = html.unescape(part["language"] or "").strip()[:LONGEST_LANGUAGE]
        inside = part["code"]
        if self._final:
            inside = self._colours.highlighted(html.unescape(inside), language) or inside
        head = f'<div class="code-head"><span>{html.escape(language)}</span></div>'
        return f'<div class="code">{head}<pre><code>{inside}</code></pre></div>'

    def _formula(self, part: re.Match[str]) -> str:
        return self._set(part["formula"], block=False)

    def _display(self, part: re.Match[str]) -> str:
        return f'<span class="md-formula">{self._set(part["display"], block=True)}</span>'

    def _picture(self, part: re.Match[str]) -> str:
        words = part["alt"] or part["src"]
        return words if any(self._links) else self._linked(part["src"], words)

    def _link(self, part: re.Match[str]) -> str:
        self._links.append(_leads_out(part["href"]))
        return f'<a href="{part["href"]}">' if self._links[-1] else ""

    def _link_end(self, part: re.Match[str]) -> str:
        return "</a>" if self._links.pop() else ""

    def _task(self, part: re.Match[str]) -> str:
        return f'<span class="md-task">{"☑" if "checked" in part["task"] else "☐"}</span> '

    def _table(self, part: re.Match[str]) -> str:
        return '<div class="md-table"><table>' if part["table"] == "<table>" else "</table></div>"

    def _set(self, escaped: str, block: bool) -> str:
        source = html.unescape(escaped).strip()
        made = self._formulas.mathml(source, block) if self._final else None
        return made or f'<code class="md-math">{html.escape(source)}</code>'

    def _linked(self, address: str, words: str) -> str:
        return f'<a href="{address}">{words}</a>' if _leads_out(address) else words


def _leads_out(address: str) -> bool:
    return _LEADS_OUT.match(address) is not None
