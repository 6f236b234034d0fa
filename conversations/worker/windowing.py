"""Which part of its conversation one running generation sends, chosen by the context of the slot that it has.

Nothing is asked while it is known that all of it fits: by its bytes, or by what the last turn counted and the bytes of
what is new. Else its server counts. Where that cannot be, bytes are the measure, and where a server refuses what was
sent for its length, it tells how many tokens that has: so it is chosen anew, and sent again.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from conversations import asking, history, window
from conversations.claims import Claim
from conversations.models import Message
from conversations.outline import Decided, Outline
from conversations.window import Said
from conversations.worker.storage import persist
from slots import counting, leases
from slots.client import ContextExceeded, LlamaServer, ServerError, ServerUnreachable
from slots.models import Server

logger = logging.getLogger(__name__)

BYTES_PER_TOKEN = 3  # fewer than most texts have, where no server tells
MOST_BYTES_PER_TOKEN = 16  # of a text that is longer than so many for each token of the context nothing is counted

Messages = list[dict[str, str]]
Neutral = Callable[[Sequence[dict[str, str]]], Messages]


class TooLong(ContextExceeded):
    """Not even the question alone fits, with the answer so far: asked again it fits no better."""

    def __init__(self, tokens: int, n_ctx: int) -> None:
        super().__init__(f"The question alone has {tokens} tokens; a slot holds {n_ctx}.", tokens, n_ctx)


class Windowing:
    """`start`: the message to which the window was moved for this answer; None: it stayed where it was.

    `neutral` makes messages as they are sent.
    """

    def __init__(self, claim: Claim, server: Server, neutral: Neutral) -> None:
        self.start: UUID | None = None
        self._claim, self._neutral = claim, neutral
        self._n_ctx = server.n_ctx or 0
        self._outline = Outline.read(claim.grant.kv_outline)
        self._untold = False  # the server does not count
        self._doubted = False  # it said that what was sent is too long
        self._bytes_per_token: float = BYTES_PER_TOKEN
        self._sent_bytes = 0

    def messages(
        self, client: LlamaServer, said: Sequence[Said], system_prompt: str, params: dict[str, Any], decided: Decided,
        before: int,
    ) -> Messages:  # fmt: skip
        """What is sent of `said`, the path to the answer, and noted as sent; `before`: its tokens that are written.

        Raises TooLong; ServerUnreachable if the server does not answer; LeaseLost.
        """
        reserve = window.reserve(max(1, asking.most(params) - before), self._n_ctx)
        whole = window.begins(said, self._n_ctx)
        self.start = said[-1].window_start if said else None
        present = history.sent(said[whole:], system_prompt)
        chosen = whole
        if self._doubted or not said or self._at_most(present) > self._n_ctx - reserve:
            chosen = self._chosen(client, said, whole, system_prompt, decided, reserve)
        if chosen != window.begins(said):
            self._note(said[chosen].id)
        sent = present if chosen == whole else history.sent(said[chosen:], system_prompt)
        self._sent_bytes = _bytes(sent)
        return sent

    def learn(self, refused: ContextExceeded) -> None:
        """What was sent was longer than was thought, or the context is smaller: from now on all is counted."""
        self._doubted = True
        self._n_ctx = refused.n_ctx or self._n_ctx
        if refused.prompt_tokens:
            self._bytes_per_token = self._sent_bytes / refused.prompt_tokens

    def _chosen(
        self, client: LlamaServer, said: Sequence[Said], whole: int, system_prompt: str, decided: Decided, reserve: int
    ) -> int:
        counted: dict[int, int] = {}

        def tokens(start: int) -> int:
            if start not in counted:
                counted[start] = self._tokens(client, history.sent(said[start:], system_prompt), decided)
            return counted[start]

        starts = window.starts(said, whole)
        chosen = window.choose(starts, tokens, self._n_ctx, reserve)
        if chosen is None:
            raise TooLong(tokens(starts[-1]), self._n_ctx)
        return chosen

    def _tokens(self, client: LlamaServer, messages: Messages, decided: Decided) -> int:
        size = _bytes(messages)
        if size > MOST_BYTES_PER_TOKEN * self._n_ctx:
            return size // MOST_BYTES_PER_TOKEN
        try:
            if not self._untold:
                return counting.exactly(client, asking.prompt(self._neutral(messages), decided))
        except ServerUnreachable:
            raise
        except ServerError as error:
            logger.warning("generation=%s: its tokens are not counted: %s", self._claim.generation, error)
            self._untold = True
        return round(size / self._bytes_per_token)

    def _at_most(self, messages: Messages) -> int:
        """By what the last turn counted, as far as they are the same; else by bytes alone."""
        known, tokens = self._outline.counted(messages, self._claim.grant.kv_tokens or 0)
        return (tokens if known else counting.ONCE) + counting.at_most(messages[known:])

    def _note(self, start: UUID) -> None:
        def note() -> None:
            with leases.fenced(self._claim.grant):
                moved = {"window_start": start, "window_context": self._n_ctx}
                Message.objects.filter(pk=self._claim.message).update(**moved)

        persist(note)
        self.start = start


def _bytes(messages: Messages) -> int:
    return sum(len(text.encode(errors="replace")) for message in messages for text in message.values())
