"""Finding one's own conversations by what was said in them.

What is asked for is found anywhere in a word, without regard to accents, capitals and compatibility forms; there is no
stemming, which no language but one's own is served by. All of it must be in one message, or in the title. Postgres
folds both sides alike (`conversations_fold`, migration 0007): letter by letter, which is what lets a place in folded
text be found again in what was written.

No index is used but that of a person's conversations, newest first: it is their own history that is read, and a full
page ends the reading. At worst that is all of it: 20,000 messages, 27 MB, took 0.2 s here.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection

from conversations import errors
from conversations.models import Conversation

LONGEST = 200  # code points of a query
MOST_TERMS = 10
SHORTEST = 3  # letters of the longest term; in scripts without spaces a word has two
SHORTEST_UNSPACED = 2
BEFORE, AFTER = 60, 180  # code points of an excerpt around what was found

_TERM = re.compile(r'"([^"]+)"|(\S+)')
# Thai to Khmer, Hiragana to Bopomofo, Han, Hangul: the blocks, roughly, whose words are short or not parted.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u312f\u3400-\u9fff\uac00-\ud7af\U00020000-\U0003ffff]"
)
TOO_SHORT = f"Search for at least {SHORTEST} letters, or {SHORTEST_UNSPACED} in scripts like Chinese, Japanese or Thai."

# Conversation by conversation, newest first, until there are enough.
_SEARCH = """
SELECT c.id, m.id, m.role, m.created_at, coalesce(m.count, 0), coalesce(m.text, ''), m.at
FROM conversations_conversation c
LEFT JOIN LATERAL (
  SELECT id, role, created_at, text, strpos(folded, %(first)s) AS at, count(*) OVER () AS count
  FROM conversations_message WHERE conversation_id = c.id AND {in_message}
  ORDER BY id DESC LIMIT 1) m ON true
WHERE c.owner_id = %(owner)s AND c.deleted_at IS NULL AND (m.id IS NOT NULL OR {in_title})
  AND (%(at)s::timestamptz IS NULL OR (c.updated_at, c.id) < (%(at)s, %(last)s))
ORDER BY c.updated_at DESC, c.id DESC LIMIT %(limit)s"""


class Piece(NamedTuple):
    """A stretch of text, and whether it is what was asked for."""

    text: str
    match: bool


@dataclass(frozen=True, slots=True)
class Hit:
    """A conversation in which all was found; `message` is the newest that has it, None if only the title does."""

    conversation: Conversation
    title: list[Piece]
    message: UUID | None
    role: str | None
    created_at: datetime | None
    messages: int  # that have it
    excerpt: list[Piece]


def terms(query: str) -> list[str]:
    """The words of `query` as Postgres folds them, phrases in quotes as one.

    Raises Invalid for too long a query, or too short words.
    """
    if len(query) > LONGEST:
        raise _invalid(f"q has {len(query):,} characters; {LONGEST} are allowed.")
    found = [phrase or word for phrase, word in _TERM.findall(query)]
    if len(found) > MOST_TERMS:
        raise _invalid(f"q has {len(found)} words; {MOST_TERMS} are allowed.")
    if not any(map(_long_enough, found)) or not all(folded := list(_folded(found).values())):
        raise _invalid(TOO_SHORT)
    return folded


def search(person: int, query: str, limit: int, after: tuple[datetime, UUID] | None = None) -> list[Hit]:
    """The newest `limit` conversations of `person` that have all of `query`, of those older than `after`.

    Raises Invalid.
    """
    wanted = terms(query)
    rows = _rows(person, wanted, limit, after)
    conversations = Conversation.objects.in_bulk([row[0] for row in rows])
    found = [(conversations[id_], *row) for id_, *row in rows if id_ in conversations]
    letters = _folded(sorted({letter for where, *_, text, _ in found for letter in where.title + text}))
    marked = Marker(wanted, letters)
    return [
        Hit(where, marked.all(where.title), message, role, at, count, marked.excerpt(text, place or 0))
        for where, message, role, at, count, text, place in found
    ]


class Marker:
    """Finds folded `terms` in what was written; `letters` are folded one by one."""

    def __init__(self, terms: Sequence[str], letters: Mapping[str, str]) -> None:
        self._letters = letters
        longest_first = sorted(terms, key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, longest_first)))

    def all(self, text: str) -> list[Piece]:
        return list(self._pieces(text))

    def excerpt(self, text: str, place: int) -> list[Piece]:
        """Around the folded character number `place`, from 1; of line breaks only a space is left."""
        at = self._written(text, place - 1)
        begin, end = _edges(text, max(0, at - BEFORE), at + AFTER)
        cut = " ".join(text[begin:end].split())
        return list(self._pieces(f"{'… ' if begin else ''}{cut}{' …' if end < len(text) else ''}"))

    def _written(self, text: str, place: int) -> int:
        """Where the letter stands that the folded one at `place` comes from."""
        folded = 0
        for index, letter in enumerate(text):
            folded += len(self._letters.get(letter, letter))
            if folded > place:
                return index
        return len(text)

    def _pieces(self, text: str) -> Iterator[Piece]:
        written = [index for index, letter in enumerate(text) for _ in self._letters.get(letter, letter)]
        folded = "".join(self._letters.get(letter, letter) for letter in text)
        done = 0
        for found in self._any.finditer(folded):
            begin, end = written[found.start()], written[found.end() - 1] + 1
            while end < len(text) and not self._letters.get(text[end], text[end]):
                end += 1  # an accent that is a character of its own
            if begin > done:
                yield Piece(text[done:begin], False)
            yield Piece(text[max(begin, done) : end], True)
            done = end
        if done < len(text):
            yield Piece(text[done:], False)


def _rows(person: int, terms: list[str], limit: int, after: tuple[datetime, UUID] | None) -> list[tuple[Any, ...]]:
    names = [f"term{number}" for number in range(len(terms))]
    statement = _SEARCH.format(
        in_message=" AND ".join(f"strpos(folded, %({name})s) > 0" for name in names),
        in_title=" AND ".join(f"strpos(conversations_fold(c.title), %({name})s) > 0" for name in names),
    )
    at, last = after or (None, None)
    about = {"owner": person, "at": at, "last": last, "limit": limit, "first": max(terms, key=len)}
    with connection.cursor() as cursor:
        cursor.execute(statement, about | dict(zip(names, terms, strict=True)))
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


def _folded(texts: Sequence[str]) -> dict[str, str]:
    """Each as Postgres folds it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT said, conversations_fold(said) FROM unnest(%s::text[]) AS said", [list(texts)])
        return dict(cursor.fetchall())


def _long_enough(term: str) -> bool:
    return len(term) >= (SHORTEST_UNSPACED if _UNSPACED.search(term) else SHORTEST)


def _edges(text: str, begin: int, end: int) -> tuple[int, int]:
    """The same stretch, a little shorter where that spares a word from being cut."""
    if begin and (space := text.find(" ", begin, begin + BEFORE // 3)) > 0:
        begin = space + 1
    if end < len(text) and (space := text.rfind(" ", end - BEFORE // 3, end)) > 0:
        end = space
    return begin, min(end, len(text))


def _invalid(sentence: str) -> errors.Invalid:
    return errors.Invalid(sentence, errors={"q": [sentence]})
