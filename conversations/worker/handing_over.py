"""A slot that changes hands: what it still holds is parked for its former holder, the newcomer's own file restored.

Where it has none, that of the preset with whose prompt it begins.

Only for one that does not find its own cache there, and in front of its first token: whatever goes wrong costs time,
and the turn goes on by reading history.
"""

import functools
import threading
from collections.abc import Sequence

from conversations import prefixes
from conversations.outline import Decided, Messages, Outline
from conversations.worker.storage import persist
from conversations.worker.verifying import Cache
from slots import parked, parking
from slots.client import LlamaServer
from slots.models import Server
from slots.parked import File
from slots.parking import Learned
from slots.renewal import Held


class HandOver:
    """Of the slot of `held`, for one request."""

    def __init__(self, held: Held, server: Server, cache: Cache) -> None:
        self._held, self._server, self._cache = held, server, cache
        self._learned: list[Learned] = []
        self._restored = False

    def anew(self, cache: Cache) -> "HandOver":
        """For another request under the same lease."""
        return HandOver(self._held, self._server, cache)

    def bring_back(self, client: LlamaServer, asked: Messages, decided: Decided, stop: threading.Event) -> bool:
        """Whether the slot, just seen quiet, holds what `asked` goes on from now. Raises LeaseLost."""
        if not parking.works(self._server):
            return False
        grant = self._held.grant
        alike = persist(lambda: prefixes.holders(grant.holder, asked, decided))
        files = persist(lambda: parked.find(grant, [grant.holder, *alike]))  # first: what is parked takes none of these
        if former := self._cache.former:
            self._note(parking.park(client, self._held, former, persist))
        return not stop.is_set() and self._restore(client, files, asked, decided)

    def settle(self) -> None:
        """When the turn is over: what it told of the server is kept."""
        if self._restored:
            self._note(Learned(of_use=self._cache.proved))
        for told in self._learned:
            persist(functools.partial(parking.learn, self._server.pk, self._server.boot, told))
        self._learned, self._restored = [], False

    def _restore(self, client: LlamaServer, files: Sequence[File], asked: Messages, decided: Decided) -> bool:
        for file in files:
            outline = Outline.read(file.outline)
            promised = outline.promises(asked, decided)
            if promised < parking.WORTH:
                continue
            told = parking.restore(client, self._held, file, persist)
            self._note(told)
            if told:
                if told.restore_ms is None:  # it hangs: nothing else is asked for that can wait as long
                    return False
                self._restored = True
                own = file.holder == self._held.grant.holder
                self._cache.brought_back(file.tokens, outline, promised, whole=own)
                return True
        return False

    def _note(self, told: Learned | None) -> None:
        if told:
            self._learned.append(told)
