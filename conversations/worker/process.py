"""One worker process: its threads, from start to a good end."""

import logging
import threading
import time
import uuid

from chatbackend.postgresql import AWAY
from conversations import events, turns
from conversations.claims import Claim
from conversations.worker.dispatcher import Dispatcher
from conversations.worker.gaps import Gaps
from conversations.worker.housekeeping import Housekeeper
from conversations.worker.listener import Listener
from conversations.worker.running import Run
from conversations.worker.storage import persist
from conversations.worker.writer import Writer
from slots import leases, servers
from slots.looks import Looks
from slots.parking_ahead import ParkingAhead
from slots.renewal import Renewal
from slots.watch import Watch

logger = logging.getLogger(__name__)

LETTING_GO_SECONDS = 2.0  # for all threads together: one that waits for its server's headers cannot be woken


class Worker:
    """`run` works until `stop`; then what runs is offered to the next worker, which goes on with the same streams."""

    def __init__(self) -> None:
        self.name = uuid.uuid4()
        self._watch = Watch()
        self._renewal = Renewal()
        self._writer = Writer()
        self._looks = Looks()
        self._dispatcher = Dispatcher(self.name, self._watch, self._start)
        self._gaps = Gaps(self.name, self._watch, self._renewal)
        self._listener = Listener(self._hint, self._gaps.wish)
        self._housekeeper = Housekeeper()
        self._parking_ahead = ParkingAhead(self.name, self._watch, self._renewal)
        self._runs: list[Run] = []
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def run(self) -> None:
        try:
            persist(servers.register, self._stopped)
        except AWAY as error:
            logger.warning("worker=%s ended before it could begin: %s", self.name, error)
            return
        threads = (
            self._watch,
            self._renewal,
            self._writer,
            self._listener,
            self._housekeeper,
            self._gaps,
            self._parking_ahead,
        )
        for thread in threads:
            thread.start()
        logger.info("worker=%s takes generations", self.name)
        self._dispatcher.run()
        self._hand_over()

    def stop(self) -> None:
        self._stopped.set()
        self._dispatcher.stop()

    def _start(self, claim: Claim) -> None:
        run = Run(claim, self._watch, self._renewal, self._writer, self._looks)
        with self._lock:
            self._runs = [other for other in self._runs if other.thread.is_alive()] + [run]
            run.thread.start()

    def _hint(self, news: str) -> None:
        if self._stopped.is_set():
            return
        self._dispatcher.wake()
        if news == turns.QUEUED:
            self._looks.begin(self._watch.servers)
        self._writer.ask()
        self._gaps.hint()

    def _hand_over(self) -> None:
        held = [one.grant for one in self._renewal.held()]
        self._renewal.stop()
        self._watch.stop()
        self._listener.stop()
        self._housekeeper.stop()
        self._gaps.stop()
        self._parking_ahead.stop()
        with self._lock:
            for run in self._runs:
                run.abandon()
            deadline = time.monotonic() + LETTING_GO_SECONDS
            for thread in [*(run.thread for run in self._runs), *self._gaps.abandon()]:
                thread.join(timeout=max(0.0, deadline - time.monotonic()))
        try:
            leases.offer(held)
        except AWAY as error:
            logger.warning("what ran here goes on when its leases expire: %s", error)
        events.flush(2.0)
        logger.info("worker=%s ended, %s generations offered to the next", self.name, len(held))
