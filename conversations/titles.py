"""The name of a conversation: the first words of its first message, then what a model makes of its first answer.

A person's own replaces both, and stays.
"""

import re
import unicodedata
from collections.abc import Iterator
from itertools import takewhile

LONGEST = 60  # code points, the mark of the cut included
CUT = "…"
NAMELESS = "Untitled"  # for a message in which nothing can be seen

# Behind the conversation, as if its person had asked it. Short: it is read by the model each time.
REQUEST = (
    "Write a title for the conversation so far: two to six words in its language, one line, without quotation marks. "
    "Answer with the title alone."
)
MOST_WORDS = 10  # more than that is a sentence, and no title

_LOOKED_AT = 4_000  # code points of the message
_LOOKED_AT_OF_A_LINE = 500

_FENCE = re.compile(r"```|~~~")
_BEFORE = re.compile(r"(?:#{1,6}(?:\s+|$)|>\s?|[-*+]\s+(?:\[[ xX]\]\s+)?)+")
_LINK = re.compile(r"!?\[([^\[\]]*)\]\([^()\s]*(?:\s+\"[^\"]*\")?\)")
# Not inside a word or a sum: 2*3*4 and 2**3 stay as they are.
_MARKED = re.compile(r"(?<![A-Za-z0-9*~`])(\*{1,3}|~~|`+)(?=[^\s*~`])(.+?)(?<=\S)\1(?![A-Za-z0-9*~`])")
_MARKS_WITHIN_MARKS = 3
_LABEL = re.compile(r"^(?:title|titel|titre|título|titolo|название|标题|タイトル)\s*[:：]\s*", re.IGNORECASE)
_WORD = re.compile(r"\w+")
_OF_THE_REQUEST = frozenset(("title", "titles", "untitled", "conversation"))
_QUOTES = ('""', "''", "“”", "„“", "””", "‘’", "«»", "»«", "‹›", "「」", "『』")
_TURNS_TEXT_ABOUT = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")

_JOINER = "\u200d"
# Skin tones, tags of flags, vowels and finals of Hangul written in parts; its initials take what follows.
_TAKEN_BY_THE_ONE_BEFORE = ((0x1F3FB, 0x1F3FF), (0xE0020, 0xE007F), (0x1160, 0x11FF), (0xD7B0, 0xD7FB))
_TAKES_THE_NEXT = ((0x1100, 0x115F), (0xA960, 0xA97C))
_VIRAMA = 9  # canonical combining class: it binds the next consonant to the one before


def title_of(words: str) -> str:
    """The first line of a message that says something, without Markdown, at most LONGEST code points; never empty."""
    lines = [_squeezed(line[:_LOOKED_AT_OF_A_LINE]) for line in words.strip()[:_LOOKED_AT].splitlines()]
    found = [*(_plain(line) for line in lines if not _FENCE.match(line)), *lines]
    saying = (line for line in found if _has(line, "L", "N", "So"))
    visible = (line for line in found if _has(line, "P", "S"))
    return _cut(next(saying, "") or next(visible, NAMELESS))


def made(answer: str, about: str) -> str | None:
    """The title in a model's `answer` to REQUEST; None where there is none that is better than the first words.

    `about`: what was said in the conversation. A title that has no word of it is about something else.
    """
    lines = [line for line in answer.strip()[:_LOOKED_AT].splitlines() if line.strip()]
    line = _plain(_LABEL.sub("", _plain(lines[0][:_LOOKED_AT_OF_A_LINE]))) if lines else ""
    line = line.removesuffix("." if not line.endswith("..") else "")
    said = _WORD.findall(line.casefold())
    if not said or len(line) > LONGEST or len(said) > MOST_WORDS or line.endswith(":") or _FENCE.match(line):
        return None
    # Small models say again what they were asked for, or how nice it was to talk.
    return None if _OF_THE_REQUEST & set(said) or not _is_about(said, about.casefold()) else line


def _is_about(said: list[str], about: str) -> bool:
    """Scripts that know no spaces have no words to compare, but characters."""
    return any(word in about if word.isascii() else any(c in about for c in word) for word in said if _tells(word))


def _tells(word: str) -> bool:
    return len(word) > 3 or not word.isascii() or word.isdigit()


def _squeezed(line: str) -> str:
    seen = (c for c in " ".join(line.split()) if c not in _TURNS_TEXT_ABOUT and unicodedata.category(c) != "Cc")
    return "".join(seen)


def _has(line: str, *categories: str) -> bool:
    return any(unicodedata.category(c).startswith(categories) for c in line)


def _plain(line: str) -> str:
    line = _LINK.sub(r"\1", _BEFORE.sub("", line, count=1) if _BEFORE.match(line) else line)
    for _ in range(_MARKS_WITHIN_MARKS):
        line = _MARKED.sub(r"\2", line)
    return _unquoted(_squeezed(line))


def _unquoted(line: str) -> str:
    inner = line[1:-1]
    quoted = line[:1] + line[-1:] in _QUOTES and not set(inner) & {line[0], line[-1]}
    return inner.strip() or line if quoted else line


def _cut(line: str) -> str:
    if len(line) <= LONGEST:
        return line
    at = next(_places_to_cut(line), LONGEST - len(CUT))
    return line[:at].rstrip(" ,;:–—-([{") + CUT


def _places_to_cut(line: str) -> Iterator[int]:
    """The best first: after the last word that fits, else (many scripts know no spaces) after the last character."""
    most = LONGEST - len(CUT)
    space = line.rfind(" ", 0, most + 1)
    if space > most // 2:
        yield space
    yield from (at for at in range(most, 0, -1) if not _belongs_to_the_one_before(line, at))


def _belongs_to_the_one_before(line: str, at: int) -> bool:
    """Whether a cut before `line[at]` would split what people see as one character (roughly UAX #29)."""
    before, here = line[at - 1], line[at]
    if unicodedata.category(here).startswith("M") or here in (_JOINER, "\u200c", "\u0e33", "\u0eb3"):
        return True
    if before == _JOINER or unicodedata.combining(before) == _VIRAMA:
        return True
    if _is_flag_letter(here):  # a flag is two of them
        return len(list(takewhile(_is_flag_letter, reversed(line[:at])))) % 2 == 1
    return _in(here, _TAKEN_BY_THE_ONE_BEFORE) or _in(before, _TAKES_THE_NEXT)


def _in(character: str, ranges: tuple[tuple[int, int], ...]) -> bool:
    return any(low <= ord(character) <= high for low, high in ranges)


def _is_flag_letter(character: str) -> bool:
    return 0x1F1E6 <= ord(character) <= 0x1F1FF
