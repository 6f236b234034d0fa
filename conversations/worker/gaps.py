"""Finds what is to be done between turns: titles, presets, and conversations that somebody is about to send to.

None of it evicts anybody or waits in the queue, and both give way as soon as anybody sends to their server.
"""

import logging
import threading
import time
from dataclasses import dataclass
from uuid import UUID

from django.conf import settings
from django.db import Error, connection

from conversations import ahead, naming, prefixes
from conversations.worker import presetting
from conversations.worker.aside import Aside
from conversations.worker.presetting import PresetPrompt
from conversations.worker.prewarming import Prewarm
from conversations.worker.titling import Title
from slots import leases
from slots.models import Slot
from slots.renewal import Renewal
from slots.watch import Watch

logger = logging.getLogger(__name__)

EVERY_SECONDS = 1.0
WISH_SECONDS = 3.0  # after which whoever wished it has sent, or gone on
MOST_WISHES = 1_000
PRESETS_SECONDS = 5.0
AGAIN_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Wish:
    """Of one person, whose last one counts."""

    conversation: UUID
    until: float  # monotonic seconds


class Gaps(threading.Thread):
    """One of each worker; what it begins runs in threads of its own."""

    def __init__(self, worker: UUID, watch: Watch, renewal: Renewal) -> None:
        super().__init__(name="gaps", daemon=True)
        self._worker, self._watch, self._renewal = worker, watch, renewal
        self._running: list[Aside] = []
        self._wishes: dict[int, Wish] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._looked_at = 0.0
        self._presets_at = 0.0
        self._read: dict[tuple[int, UUID], float] = {}  # when the prompt of a preset was read last on a server

    def hint(self) -> None:
        """Somebody sent, or something ended."""
        if self._running or self._wishes:
            self._wake.set()

    def wish(self, person: int, conversation: UUID) -> None:
        """`person` is about to send there, and nowhere else."""
        with self._lock:
            self._wishes.pop(person, None)
            if len(self._wishes) < MOST_WISHES:
                self._wishes[person] = Wish(conversation, time.monotonic() + WISH_SECONDS)
        for other in list(self._running):
            if isinstance(other, Prewarm) and other.person == person and other.grant.holder != conversation:
                other.give_way()
        self._wake.set()

    def stop(self) -> None:
        self._stopped.set()
        self._wake.set()

    def abandon(self) -> list[threading.Thread]:
        """Let go of everything: the worker goes away."""
        for one in self._running:
            one.abandon()
        return [one.thread for one in self._running]

    def run(self) -> None:
        while not self._stopped.is_set():
            self._wake.wait(EVERY_SECONDS)
            self._wake.clear()
            try:
                self.round()
            except Error as error:
                logger.warning("nothing is done between turns: %s", error)
            finally:
                connection.close()

    def round(self) -> None:
        """Do every duty that is due."""
        self._running = [one for one in self._running if one.thread.is_alive()]
        self._give_way()
        for person, wish in list(self._wishes.items()):
            if self._wake.is_set():  # somebody sent: what is in their way does not stay until all wishes were looked at
                self._give_way()
            if self._granted(person, wish):
                with self._lock:
                    if self._wishes.get(person) == wish:
                        del self._wishes[person]
        if settings.TITLES and time.monotonic() >= self._looked_at + EVERY_SECONDS / 2:
            self._looked_at = time.monotonic()
            self._title()
        if time.monotonic() >= self._presets_at:
            self._presets_at = time.monotonic() + PRESETS_SECONDS
            self.read_presets()

    def read_presets(self) -> None:
        """Begin to read one on each server that has nothing else to do; keep none that is gone, whatever it does."""
        reachable = self._watch.reachable
        for server in presetting.keeping(reachable) if reachable else ():
            wished = prefixes.wanted(server.switches)
            presetting.keep(server, [one.holder for one in wished])
            if not presetting.idle(server):
                continue
            now = time.monotonic()
            # One that is parked and soon overwritten by others is not read for ever.
            self._read = {which: at for which, at in self._read.items() if now <= at + AGAIN_SECONDS}
            missing = (one for one in presetting.missing(server, wished) if (server.pk, one.holder) not in self._read)
            if (one := next(missing, None)) is None:
                continue
            grant = leases.acquire(one.holder, self._worker, [server.pk], work=Slot.Work.PREWARM)
            if grant:
                self._read[server.pk, one.holder] = now
                self._begin(PresetPrompt(grant, self._watch, self._renewal, one))

    def _give_way(self) -> None:
        unwelcome = ahead.unwelcome([one.grant.fence for one in self._running]) if self._running else set()
        for one in self._running:
            if one.grant.fence in unwelcome:
                one.give_way()

    def _granted(self, person: int, wish: Wish) -> bool:
        """Whether there is nothing more to be done about it."""
        if time.monotonic() > wish.until or ahead.nothing_due(wish.conversation):
            return True
        reachable = self._watch.reachable
        grant = ahead.acquire(self._worker, reachable, person, wish.conversation) if reachable else None
        if grant:
            self._begin(Prewarm(grant, self._watch, self._renewal, person))
        return grant is not None

    def _title(self) -> None:
        reachable = self._watch.reachable
        due = naming.due(reachable) if reachable else None
        if due is None:
            return
        grant = leases.acquire(due.conversation, self._worker, [due.server], work=Slot.Work.TITLE)
        if grant:
            self._begin(Title(grant, self._watch, self._renewal))

    def _begin(self, aside: Aside) -> None:
        grant = aside.grant
        logger.info("%s holder=%s slot=%s fence=%s", type(aside).__name__, grant.holder, grant.slot, grant.fence)
        self._running.append(aside)
        aside.thread.start()
