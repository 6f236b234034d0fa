"""Hostile texts, and what may come of them in a page."""

import re
from html.parser import HTMLParser
from pathlib import Path

VOID = {"br", "hr"}
TEXT = {
    "blockquote", "br", "code", "del", "div", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre",
    "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
}  # fmt: skip
MATH = {
    "math", "menclose", "mfrac", "mi", "mn", "mo", "mover", "mphantom", "mroot", "mrow", "mspace", "msqrt", "mstyle",
    "msub", "msubsup", "msup", "mtable", "mtd", "mtext", "mtr", "munder", "munderover",
}  # fmt: skip
CLASS = re.compile(r"code|code-head|md-[a-z]+")
SHORT_LENGTH = re.compile(r"\+?\d?(\.\d{1,4})?(em|ex|pt|px)?")
WORD = re.compile(r"[a-z0-9-]{1,20}")
LINK = re.compile(r"https?://[^/]|mailto:.", re.IGNORECASE)
# What each attribute may say, wherever it stands.
VALUES = {
    "class": CLASS,
    "dir": re.compile("auto"),
    "align": re.compile("left|center|right"),
    "start": re.compile(r"\d{1,9}"),
    **dict.fromkeys(("columnspacing", "linethickness", "maxsize", "minsize", "rowspacing", "width"), SHORT_LENGTH),
    **dict.fromkeys(
        ("accent", "accentunder", "columnalign", "display", "displaystyle", "fence", "form", "largeop", "mathvariant",
         "movablelimits", "notation", "scriptlevel", "separator", "stretchy"), WORD,
    ),
}  # fmt: skip


def corpus() -> list[str]:
    """Texts that tried to break some page; control characters stand in the file as their pictures (U+2400 …)."""
    pictures = {0x2400 + control: control for control in range(32)}
    written = (Path(__file__).parent / "xss_corpus.txt").read_text(encoding="utf-8")
    return [entry.translate(pictures) for entry in written.rstrip("\n").split("\n%%%%\n")]


class Unsafe(AssertionError):
    """A block that must not reach a page."""


class _Check(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.open: list[str] = []
        self.elements = 0  # at the top
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements += not self.open
        if tag == "a":
            self._check_link(dict(attrs))
        elif tag in TEXT | MATH:
            for name, value in attrs:
                if name not in VALUES or not VALUES[name].fullmatch(value or ""):
                    raise Unsafe(f"<{tag} {name}={value!r}>")
        else:
            raise Unsafe(f"<{tag}>")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            raise Unsafe(f"unbalanced </{tag}>")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        raise Unsafe(f"<{tag}/>")

    def handle_data(self, data: str) -> None:
        if "<" in data:
            raise Unsafe(f"a stray <: {data!r}")
        if not self.open:
            raise Unsafe(f"text beside elements: {data!r}")
        self.words.append(data)

    def handle_comment(self, data: str) -> None:
        raise Unsafe(f"comment {data!r}")

    def handle_decl(self, decl: str) -> None:
        raise Unsafe(f"declaration {decl!r}")

    handle_pi = unknown_decl = handle_comment

    def _check_link(self, attributes: dict[str, str | None]) -> None:
        if attributes.pop("target", "") != "_blank" or attributes.pop("rel", "") != "noopener noreferrer nofollow":
            raise Unsafe("a link that keeps hold of the page")
        address = attributes.pop("href", None)
        if address is not None and not LINK.match(address):
            raise Unsafe(f"a link to {address!r}")
        if attributes or "a" in self.open:
            raise Unsafe(f"a link with {attributes} in {self.open}")


def check(block: str) -> None:
    """Raises Unsafe unless `block` is one well-formed element of the harmless kinds, all its attributes harmless."""
    parser = _Check()
    parser.feed(block)
    parser.close()
    if parser.open or parser.elements != 1:
        raise Unsafe(f"{parser.elements} elements, open: {parser.open}, in {block!r}")
