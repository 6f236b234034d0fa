"""Code with colours: Pygments' tokens, a dozen classes, the languages that people ask models for.

A lexer is a set of regular expressions that hostile code can keep busy for minutes, and Python cannot be interrupted
in one. So the languages are listed, each tried with such code; code of a shape that no person writes stays plain; and
between two tokens the clock is looked at.
"""

import functools
import html
import re
import time
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Generic, Keyword, Literal, Name, Number, Operator, String, _TokenType

from conversations.rendering.budget import Budget

# By the lexer's name; names that models put on a fence.
LANGUAGES = {
    "bash": ("sh", "shell", "zsh", "console", "shell-session", "terminal"),
    "batch": ("bat", "cmd"),
    "c": ("h",),
    "clojure": ("clj",),
    "cmake": (),
    "cpp": ("c++", "cc", "hpp", "cxx", "arduino"),
    "csharp": ("c#", "cs"),
    "css": (),
    "dart": (),
    "diff": ("patch",),
    "docker": ("dockerfile",),
    "elixir": ("ex", "exs"),
    "erlang": ("erl",),
    "go": ("golang",),
    "graphql": ("gql",),
    "haskell": ("hs",),
    "html": ("htm", "svg", "vue"),
    "ini": ("cfg", "conf", "properties", "dotenv"),
    "java": (),
    "javascript": ("js", "jsx", "mjs", "node"),
    "json": ("json5", "jsonc", "geojson"),
    "julia": ("jl",),
    "kotlin": ("kt", "kts"),
    "lua": (),
    "make": ("makefile",),
    "matlab": ("octave",),
    "nginx": (),
    "ocaml": ("ml",),
    "perl": ("pl",),
    "php": (),
    "powershell": ("ps1", "pwsh", "posh"),
    "protobuf": ("proto",),
    "python": ("py", "python3", "pyi", "gdscript"),
    "r": (),
    "ruby": ("rb",),
    "rust": ("rs",),
    "scala": (),
    "scss": ("sass", "less"),
    "sql": ("mysql", "postgresql", "sqlite", "plsql", "tsql"),
    "swift": (),
    "terraform": ("hcl", "tf"),
    "tex": ("latex",),
    "toml": (),
    "typescript": ("ts", "tsx"),
    "xml": ("xsd", "xslt"),
    "yaml": ("yml",),
    "zig": (),
}
MOST_CODE = 20_000  # code points of one text; the rest of its code stays plain
LONGEST_LINE = 1_000
LONGEST_GAP = 200  # of white space

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


_GAP = re.compile(rf"\s{{{LONGEST_GAP}}}")


class Allowance:
    """How much code of one text may still be coloured."""

    def __init__(self, budget: Budget) -> None:
        self._left = MOST_CODE
        self._budget = budget

    def highlighted(self, code: str, language: str) -> str | None:
        """`code` as HTML; None where it should stay as it is."""
        name = _LEXERS.get(language.lower())
        if name is None or len(code) > self._left or _hostile(code):
            return None
        self._left -= len(code)
        lexer = _lexer(name)  # making it takes long, and once in a process: not at the cost of this text
        with self._budget.spending() as until:
            try:
                return _coloured(_tokens(lexer, code, until))
            except _TooSlow:
                return None


class _TooSlow(Exception):
    pass


def _tokens(lexer: Lexer, code: str, until: float) -> Iterator[tuple[str, str]]:
    for kind, words in lexer.get_tokens(code):
        if time.thread_time() > until:
            raise _TooSlow
        yield _class(kind), words


def _coloured(tokens: Iterator[tuple[str, str]]) -> str:
    pieces = []
    for kind, run in groupby(tokens, key=itemgetter(0)):
        words = html.escape("".join(word for _, word in run), quote=False)
        pieces.append(f'<span class="md-{kind}">{words}</span>' if kind else words)
    return "".join(pieces)


def _hostile(code: str) -> bool:
    return max(map(len, code.split("\n"))) > LONGEST_LINE or _GAP.search(code) is not None


@functools.cache
def _lexer(name: str) -> Lexer:
    return get_lexer_by_name(name, stripnl=False, ensurenl=False)


@functools.cache
def _class(kind: _TokenType) -> str:
    return next((name for parent, name in _CLASSES if kind[: len(parent)] == parent), "")
