"""Code with colours: Pygments' tokens, a dozen classes, the languages that people ask models for.

The languages are listed because a lexer is a set of regular expressions that hostile code may keep busy, and Python
cannot be interrupted in one: those listed were tried with such code.
"""

import functools
import html
from itertools import groupby

from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Generic, Keyword, Literal, Name, Number, Operator, String, _TokenType

LANGUAGES = {
    "python": ("py", "python3", "pyi"),
    "javascript": ("js", "jsx", "mjs", "node"),
    "json": ("json5", "jsonc", "geojson"),
    "bash": ("sh", "shell", "zsh"),
}
MOST_CODE = 24_000  # code points of one text; the rest of its code stays plain

_CLASSES = (
    (Comment, "comment"),
    (Keyword.Constant, "constant"),
    (Keyword, "keyword"),
    (Name.Function, "name"),
    (Name.Class, "name"),
    (Name.Decorator, "name"),
    (Name.Namespace, "name"),
    (Name.Builtin, "builtin"),
    (Name.Tag, "tag"),
    (Name.Attribute, "attribute"),
    (Name.Constant, "constant"),
    (String, "string"),
    (Number, "number"),
    (Literal, "string"),
    (Operator.Word, "keyword"),
    (Generic.Deleted, "deleted"),
    (Generic.Inserted, "inserted"),
    (Generic.Heading, "heading"),
    (Generic.Subheading, "heading"),
    (Generic.Prompt, "prompt"),
)
_LEXERS = {alias: name for name, aliases in LANGUAGES.items() for alias in (name, *aliases)}


class Allowance:
    """How much code of one text may still be coloured."""

    def __init__(self) -> None:
        self._left = MOST_CODE

    def highlighted(self, code: str, language: str) -> str | None:
        """`code` as HTML; None where it should stay as it is."""
        name = _LEXERS.get(language.lower())
        if name is None or len(code) > self._left:
            return None
        self._left -= len(code)
        tokens = _lexer(name).get_tokens(code)
        pieces = []
        for kind, run in groupby(tokens, key=lambda token: _class(token[0])):
            words = html.escape("".join(word for _, word in run), quote=False)
            pieces.append(f'<span class="md-{kind}">{words}</span>' if kind else words)
        return "".join(pieces)


@functools.cache
def _lexer(name: str) -> Lexer:
    return get_lexer_by_name(name, stripnl=False, ensurenl=False)


@functools.cache
def _class(kind: _TokenType) -> str:
    return next((name for parent, name in _CLASSES if kind[: len(parent)] == parent), "")
