"""What every worker does beside answering: look at the servers, probe new ones, reap dead leases, confirm stops.

Each duty is a compare-and-set, so any number of workers may do it. Which server answers is this process's own
knowledge; only a fact about the server (another process, fewer slots) changes its row.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

from django.conf import settings
from django.db import Error, connection

from slots import foreign, leases, probing, servers
from slots.models import Server, Slot

logger = logging.getLogger(__name__)

EVERY_SECONDS = 1.0
HANGING_SECONDS = 2.0  # after which a round goes on without those that still look at their server

Thing = TypeVar("Thing")


class Watch(threading.Thread):
    """Looks at every server once a second; `reachable` are those that answer rightly from here."""

    def __init__(self) -> None:
        super().__init__(name="watch", daemon=True)
        self._reachable: frozenset[int] = frozenset()
        self._known: list[Server] = []
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._hurry = threading.Event()
        self._reaps_from = time.monotonic() + settings.LEASE_REAP_GRACE
        self._pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="look")
        # Apart from the looks: a probe of a slow server must not keep the others from being looked after.
        self._probes = ThreadPoolExecutor(max_workers=4, thread_name_prefix="probe")
        self._trying: set[int] = set()
        self._looking: dict[int, Future[bool]] = {}
        self._doubted: dict[int, float] = {}  # since when, in monotonic seconds

    @property
    def reachable(self) -> list[int]:
        return sorted(self._reachable)

    @property
    def servers(self) -> list[Server]:
        """Those, as their rows were when this process looked last."""
        return [server for server in self._known if server.pk in self._reachable]

    @property
    def trying(self) -> bool:
        """Whether this process probes a server."""
        return bool(self._trying)

    def doubt(self, server: int) -> None:
        """A request failed there: nothing more is sent until it was looked at again, its slots included."""
        with self._lock:
            self._reachable -= {server}
            self._doubted[server] = time.monotonic()
        self._hurry.set()

    def stop(self) -> None:
        self._stopped.set()
        self._hurry.set()

    def run(self) -> None:
        while not self._stopped.is_set():
            self._hurry.clear()
            try:
                self.round()
            except Error as error:
                logger.warning("servers could not be looked after: %s", error)
                connection.close()
            self._hurry.wait(EVERY_SECONDS)
        for pool in (self._pool, self._probes):
            pool.shutdown(wait=False, cancel_futures=True)

    def round(self) -> None:
        """Do every duty once."""
        known = self._known = list(Server.objects.exclude(state=Server.State.RETIRED))
        with self._lock:
            self._reachable &= {server.pk for server in known}
        self._look_at(known)
        # A newcomer takes over first what its predecessor left: a reaped stream is a stopped one.
        for slot in leases.reap() if time.monotonic() > self._reaps_from else ():
            logger.warning("lease of a silent worker ended slot=%s grace=%ss", slot, settings.LEASE_REAP_GRACE)
        leases.leave_retired()
        stopping = Slot.objects.filter(condition=Slot.Condition.STOPPING, server__in=self._reachable)
        list(self._pool.map(_in_thread(servers.finish_stopping), stopping.select_related("server")))

    def _look_at(self, known: Sequence[Server]) -> None:
        """One look at a time at each: those that hang are waited for no longer than HANGING_SECONDS."""
        for server in known:
            if server.pk not in self._looking:
                self._looking[server.pk] = self._pool.submit(_in_thread(self._look), server)
        wait(self._looking.values(), HANGING_SECONDS)
        for ended in [pk for pk, look in self._looking.items() if look.done()]:
            self._looking.pop(ended).result()

    def _look(self, server: Server) -> bool:
        """What is found counts at once: a server that hangs must not keep the others from being used."""
        began, doubted = time.monotonic(), server.pk in self._doubted
        answers = self._found(server.pk, began, servers.look(server, doubted))
        if answers and probing.due(server):
            self._try(server)
        elif answers and not foreign.watch(server):
            self.doubt(server.pk)
        return answers

    def _found(self, server: int, began: float, answers: bool) -> bool:
        """Note it, unless the server came into doubt while it was looked at."""
        with self._lock:
            answers = answers and began >= self._doubted.get(server, began)
            if answers:
                self._doubted.pop(server, None)
            self._reachable = self._reachable | {server} if answers else self._reachable - {server}
        return answers

    def _try(self, server: Server) -> None:
        with self._lock:
            if server.pk in self._trying or self._stopped.is_set():
                return
            self._trying.add(server.pk)
        self._probes.submit(_in_thread(self._probe), server)

    def _probe(self, server: Server) -> bool:
        try:
            return probing.run(server)
        except Error as error:
            logger.warning("server=%s: its probe could not be stored: %s", server.url, error)
            return False
        finally:
            with self._lock:
                self._trying.discard(server.pk)
            self._hurry.set()


def _in_thread(duty: Callable[[Thing], bool]) -> Callable[[Thing], bool]:
    """Give the pooled connection back after each duty."""

    def done(thing: Thing) -> bool:
        try:
            return duty(thing)
        finally:
            connection.close()

    return done
