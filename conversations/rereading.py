"""What saying something else in place of a message costs, told before it is sent: tokens to be read, and how long.

From what is stored alone, no server is asked: prompts were counted when they were answered, messages whose prompt never
was are as long as their share of the bytes of this conversation, and of the slot's cache is noted what it holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from django.db import connection

from conversations import asking, errors, estimate, fitting, history, placeholders, window
from conversations.estimate import BYTES_PER_TOKEN, Estimate
from conversations.models import Conversation, Message
from conversations.outline import Outline
from conversations.window import Said
from slots import residency

LONG = 100  # characters

# Of each message up to a question: how many model tokens the prompt had that ended with it. Of an answer that is the
# prompt and what was written, unless it was thought about: a template may leave that out. What was queued again or gone
# on with was counted with a part of the answer: the least is the one without. What was counted for another window tells
# nothing: an answer before which it was moved has no count of its question.
_COUNTED = """
WITH RECURSIVE path AS (
  SELECT id, parent_id, role, text, 1 AS depth FROM conversations_message WHERE id = %s
  UNION ALL
  SELECT p.id, p.parent_id, p.role, p.text, path.depth + 1
  FROM conversations_message p JOIN path ON p.id = path.parent_id)
SELECT path.role, octet_length(path.text), CASE WHEN path.role = 'user' THEN asked.tokens ELSE said.tokens END
FROM path
LEFT JOIN LATERAL (
  SELECT min((g.usage->>'prompt_tokens')::integer) AS tokens
  FROM conversations_message a JOIN conversations_generation g ON g.message_id = a.id
  WHERE a.parent_id = path.id AND g.kind <> 'continue' AND NOT g.imported AND a.window_start IS NULL) asked ON true
LEFT JOIN LATERAL (
  SELECT CASE WHEN m.reasoning = ''
           THEN (g.usage->>'prompt_tokens')::integer + (g.usage->>'completion_tokens')::integer END AS tokens
  FROM conversations_generation g JOIN conversations_message m ON m.id = g.message_id
  WHERE g.message_id = path.id AND g.usage->>'prompt_tokens' IS NOT NULL AND NOT g.imported
  ORDER BY g.id DESC LIMIT 1) said ON true
ORDER BY path.depth DESC"""


@dataclass(frozen=True, slots=True)
class Cost:
    """`seconds` from the beginning of the reading to the first token; None while no speed is known."""

    tokens: int
    seconds: Estimate | None


class _Turn(NamedTuple):
    """Of the prompt: what one side said."""

    bytes: int
    tokens: int | None  # of the prompt up to its end, where that was counted


def of_edit(where: Conversation, question: Message, same: int, characters: int | None) -> Cost:
    """What an edit of `question` makes the model read, be it `characters` long (None: as long as it is).

    `same`: how many characters at its beginning stay as they are. Raises NotAQuestion.
    """
    if question.role != Message.Role.USER:
        raise errors.NotAQuestion
    said = history.said(where.pk, question.pk)
    asked = history.sent(said[window.begins(said) :], _system_prompt(where))
    turns = _turns(where, question, said)
    upto = [0.0, *(_upto(turns) if turns else [0.0])]
    length = len(question.text)
    wanted = length if characters is None else characters
    # Of a short one most is what the template writes around it.
    measure = (upto[-1] - upto[-2], length) if length >= LONG else (upto[-1], sum(turn.bytes for turn in turns))
    each = measure[0] / measure[1] if measure[1] else 1 / BYTES_PER_TOKEN  # imported ones may be empty
    known = _in_cache(where, asked)
    found = upto[-2] + each * min(same, wanted, length) if known == len(asked) else upto[known]
    grown = each * (wanted - length)
    moved = _after_move(where, upto, grown)
    tokens = max(1, round(upto[-1] + grown - found if moved is None else moved))
    return Cost(tokens, estimate.reading(where.model, tokens))


def _after_move(where: Conversation, upto: Sequence[float], grown: float) -> float | None:
    """Tokens that are read if the window has to be moved for it, all but the system prompt; None if it has not."""
    n_ctx, opening = fitting.context(where.model), 1 if where.system_prompt else 0
    if n_ctx is None:
        return None

    def tokens(start: int) -> int:
        return round(upto[-1] + grown - upto[start] + upto[opening])

    present, *later = range(opening, len(upto) - 1, 2) or [opening]  # those before a question
    reserve = window.reserve(asking.most(where.params), n_ctx)
    chosen = window.choose([present, *later], tokens, n_ctx, reserve)
    return None if chosen in (None, present) else tokens(chosen or 0) - upto[opening]


def _in_cache(where: Conversation, asked: Sequence[dict[str, str]]) -> int:
    """How many of the first turns of the prompt the slot would find again, or a file would bring back."""
    return Outline.read(residency.outline(where.pk)).holds(asked)


def _system_prompt(where: Conversation) -> str:
    return placeholders.expanded(where.system_prompt, where.created_at)


def _turns(where: Conversation, question: Message, said: Sequence[Said]) -> list[_Turn]:
    """One for each turn that `history.sent` makes of `said`, the path to `question`, from where the window begins."""
    begins = window.begins(said)
    moved = max((at for at, one in enumerate(said) if one.window_start), default=0)  # for this answer
    with connection.cursor() as cursor:
        cursor.execute(_COUNTED, [question.pk])
        counted = enumerate(cursor.fetchall())
        messages = [(role, size, tokens if at >= moved else None) for at, (role, size, tokens) in counted][begins:]
    system = len(_system_prompt(where).encode())
    turns, last = [_Turn(system, None)] if system else [], ""
    for role, size, tokens in messages:
        if not size:
            continue
        if role == last:
            turns[-1] = _Turn(turns[-1].bytes + size, tokens or turns[-1].tokens)
        else:
            turns.append(_Turn(size, tokens))
        last = role
    return turns


def _upto(turns: Sequence[_Turn]) -> list[float]:
    """Tokens of the prompt up to the end of each turn."""
    sizes = list(accumulate(turn.bytes for turn in turns))
    counted = [(turn.tokens, size) for turn, size in zip(turns, sizes, strict=True) if turn.tokens]
    each = counted[-1][0] / counted[-1][1] if counted else 1 / BYTES_PER_TOKEN
    found: list[float] = []
    for turn, following in zip(turns, [*turns[1:], _Turn(0, None)], strict=True):
        before = found[-1] if found else 0.0
        here = turn.tokens or before + turn.bytes * each
        if not turn.tokens and following.tokens:  # with the thoughts in it, if there are any
            here = following.tokens - following.bytes * each
        found.append(max(before, here))
    return found
