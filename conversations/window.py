"""Which part of a conversation a model is sent when not all of it fits.

That is the system prompt, and the path from one of its messages on: the window start. While all of that and room for
the answer fit the context, the start stays, so that the cache is found again; when they no longer do it jumps ahead so
far that about half of the context is free for the turns to come. It is always at a message of a person, never in the
middle of a turn, and the last question is always whole.

A jump is noted on the answer that it was made for, and holds for what follows that one. So each path has its own:
whoever edits an earlier message, or goes back to another version, is on a path that has what was noted above the fork,
and no more is left out there.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

RESERVE = 4  # of the context at most one in so many is kept free for the answer
ROOM = 16  # and this is the least that a message must leave: some words, where it has hardly any left
FREE = 2  # after a jump the prompt takes at most one in so many


class Said(NamedTuple):
    """A message on the path to an answer; `is_answer`: it is that one, which is to be written."""

    is_answer: bool
    role: str
    text: str
    reasoning: str
    id: UUID
    window_start: UUID | None = None
    window_context: int | None = None


def reserve(most: int, n_ctx: int) -> int:
    """Model tokens that are kept free for an answer of `most` tokens."""
    return max(1, min(most, n_ctx // RESERVE))


def room(most: int, n_ctx: int) -> int:
    """The least that a prompt must leave for an answer of `most` tokens."""
    return max(1, min(most, n_ctx // ROOM))


def begins(messages: Sequence[Said], n_ctx: int | None = None) -> int:
    """The index in the path `messages` at which the window begins, by what was noted on it last.

    What was chosen for a smaller context than `n_ctx` is no reason to leave anything out in this one.
    """
    noted = next((one for one in reversed(messages) if one.window_start), None)
    if noted is None or (n_ctx is not None and (noted.window_context or 0) < n_ctx):
        return 0
    return next((at for at, one in enumerate(messages) if one.id == noted.window_start), 0)


def starts(messages: Sequence[Said], first: int) -> list[int]:
    """Where the window may begin: at `first`, where it does, and at every later message of a person."""
    return [first, *(at for at, one in enumerate(messages) if at > first and one.role == "user")]


def choose(starts: Sequence[int], tokens: Callable[[int], int], n_ctx: int, reserve: int) -> int | None:
    """That one of `starts`, the first of which is the present one, from which on is sent; None if nothing fits.

    `tokens` gives those of the prompt that begins there. Of a turn that leaves no half free the one before is sent
    with it where both fit: a question may be about that.
    """
    present, *later = starts
    if tokens(present) <= n_ctx - reserve:
        return present
    if not later:
        return present if tokens(present) < n_ctx else None
    at = bisect_left(later, True, key=lambda start: tokens(start) <= n_ctx // FREE)
    last = len(later) - 1
    if at >= last and last and tokens(later[last - 1]) <= n_ctx - reserve:
        return later[last - 1]
    chosen = later[min(at, last)]
    return chosen if tokens(chosen) < n_ctx else None
