"""What the cache of a slot holds is known, not hoped: checked before a request, judged by the server's first word.

Before a request `/slots` must show as many slots as there were, ours quiet, and on it what was recorded when the last
turn ended. The first progress event tells how much of the cache was reused, before any text comes:

- more than can have been the conversation's own: isolation is broken (`slots.isolation`).
- less than there was: a replay, with its cause. Of what was restored from a file that shows whether files are of use.

Where a server is used one at a time, what is beside its slots may be found again too, and nothing bounds it; one that
tells no progress is not judged.
"""

import logging
from typing import Protocol

from conversations.outline import OPENING, Decided, Message, Messages, Outline
from conversations.worker.storage import persist
from slots import foreign, servers
from slots.client import LlamaServer
from slots.grants import Former, Grant
from slots.isolation import IsolationBroken
from slots.looks import Looks
from slots.models import Server

logger = logging.getLogger(__name__)

Figures = tuple[int | None, int | None]  # tokens and task, as `/slots` shows them


class Begun(Protocol):
    """Work that begins under a lease: a turn, or what is done beside turns."""

    @property
    def grant(self) -> Grant: ...
    @property
    def replay_cause(self) -> str | None: ...
    @property
    def stream_bytes(self) -> int: ...
    @property
    def prompt_before(self) -> int | None: ...


class Cache:
    """What one running generation knows of its slot's cache. `replay_cause`: why history is read again."""

    def __init__(self, claim: Begun, server: Server, looks: Looks | None = None) -> None:
        self._claim, self._grant, self._server, self._looks = claim, claim.grant, server, looks
        self.replay_cause = claim.replay_cause
        self._outline = Outline.read(self._grant.kv_outline)
        self._before: Figures | None = None  # None: somebody else sent the request
        self._ours = False  # what was there before is known to be this conversation's
        # Unless this worker finds out more: a cold slot was told to reuse nothing.
        self._bound = None if self._grant.warm or self._grant.parks_in_ram else 0
        self._asked: Messages = ()
        self._decided: Decided = {}
        self._trimmed = False
        self.began = claim.stream_bytes > 0  # the server is at it: the slot holds this request's tokens
        self.judged = False  # the server told what it reuses: from then on it reads for this request
        self._restored: int | None = None  # tokens, from a file
        self._promised = 0  # of these, at least, must be found again
        self.proved: bool | None = None  # whether they were

    def anew(self, claim: Begun) -> "Cache":
        """For another request on the same server."""
        return Cache(claim, self._server)

    def before(self, client: LlamaServer) -> bool:
        """Whether the cache may be reused: the slot is quiet and nobody was in it since this conversation was.

        Raises ServerError when that cannot be known.
        """
        grant = self._grant
        self._before = self._seen_ahead() or servers.wait_until_quiet(
            client, grant.id_slot, total=self._server.total_slots
        )
        self._ours = grant.warm and (grant.shown_by(self._before) or grant.preempted is not None)
        if grant.warm and grant.kv_task is not None and not self._ours:
            task = self._before[1]
            logger.warning(
                "slot=%s does not show what was left there (task %s, not %s)", grant.slot, task, grant.kv_task
            )
            self.replay_cause = persist(lambda: foreign.mismatch(grant, task))
        # Where the server parks in its RAM, what it finds again there is this conversation's own.
        reuse = self._ours or grant.parks_in_ram
        self._bound = self._most(reuse, self._held)
        return reuse

    @property
    def own(self) -> bool:
        """Whether what the slot held when it was looked at is known to be this conversation's."""
        return self._ours

    @property
    def former(self) -> Former | None:
        """Whose cache the slot still holds, as it was recorded."""
        former = self._grant.former
        return former if former and self._before and former.shown_by(self._before) else None

    def brought_back(self, tokens: int, outline: Outline, promised: int, *, whole: bool) -> None:
        """So many tokens were restored into the slot; `promised` are to be found again at least.

        `whole`: they are what its last turn left, and not only what it has in common with others.
        """
        task = self._before[1] if self._before else None  # a restore is no request
        self._before = (None if task is None else tokens, task)
        self._ours, self._bound, self._restored, self._promised = True, self._most(True, tokens), tokens, promised
        self._outline, self.replay_cause = outline, None if whole else self._claim.replay_cause

    @property
    def restored(self) -> tuple[Figures, Outline]:
        """What the slot is known to hold as long as nothing was sent: of a file, else nothing."""
        task = self._before[1] if self._before else None
        return ((None, None), Outline()) if self._restored is None else ((self._restored, task), self._outline)

    def asks(self, messages: Messages, decided: Decided, *, trimmed: bool = False) -> None:
        """What is about to be asked; `decided` is what the template is told beside it.

        `trimmed`: the window was moved for it.
        """
        self._asked, self._decided, self._trimmed = messages, decided, trimmed

    def judge(self, progress: dict[str, int]) -> None:
        """By the first progress event, before anything that follows is stored. Raises IsolationBroken."""
        self.began = True
        if self.judged:
            return
        self.judged = True
        cache, bound = progress["cache"], self._bound
        if bound is not None and cache > bound:
            raise IsolationBroken(self._grant.id_slot, cache, bound)
        if self._ours:
            about = self._asked, cache, self._held or 0, self._decided
            self.replay_cause = self.replay_cause or self._outline.cause(*about, trimmed=self._trimmed)
            self._prove(cache)
        elif self._grant.parks_in_ram and cache >= (self._claim.prompt_before or progress["total"]) - OPENING:
            self.replay_cause = None
        elif self._trimmed and not self.replay_cause:
            self.replay_cause = "trimmed"

    def after(self, figures: Figures, answer: Message, prompt_tokens: int | None) -> tuple[Figures, Outline]:
        """What may be recorded of the quiet slot that shows `figures`; nothing where it cannot be this turn's."""
        unknown: tuple[Figures, Outline] = ((None, None), Outline())
        if not self.began:  # it was refused, or not even sent: what was there still is
            return (figures, self._outline) if self._ours and figures == self._before else unknown
        if self._before and figures[1] == self._before[1]:
            if figures[1] is not None:
                logger.error("slot=%s shows no new request: the server ran it elsewhere", self._grant.slot)
            return unknown
        return figures, self._outline.followed_by(self._asked, answer, prompt_tokens, figures[0] or 0, self._decided)

    def _seen_ahead(self) -> Figures | None:
        """What a look showed that was begun before the lease was had, if it is what was recorded there.

        Whatever else had been sent to the slot before or after that look, until it was leased, would have left
        another record. None: somebody has to look now.
        """
        states = self._looks.take(self._grant.server) if self._looks else ()
        if len(states) != self._server.total_slots or self._grant.kv_task is None:
            return None
        state = next((state for state in states if state.id == self._grant.id_slot), None)
        quiet = state and not state.busy and (state.tokens, state.task)
        return quiet if quiet and self._grant.shown_by(quiet) else None

    def _prove(self, cache: int) -> None:
        if self._restored is not None:
            self.proved = 2 * cache >= self._promised
            if not self.proved:
                self.replay_cause = self._claim.replay_cause or "cache_lost"

    def _most(self, reuse: bool, held: int | None) -> int | None:
        """How many tokens the server can reuse of what is this conversation's own; None: nobody knows."""
        if not reuse:
            return 0
        # What yielded to this turn may still have sent its request when the slot had been looked at: the same
        # conversation, read further.
        alone = self._server.grade != Server.Grade.ONE_AT_A_TIME and self._grant.preempted is None
        return held if alone else None

    @property
    def _held(self) -> int | None:
        """What it holds of this conversation: as recorded, or restored, or what the work that yielded left there."""
        if self._restored is not None:
            return self._restored
        return self._grant.kv_tokens if self._grant.preempted is None or self._before is None else self._before[0]
