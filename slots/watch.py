"""What every worker does beside answering: look at the servers, probe new ones, reap dead leases, confirm stops.

Each duty is a compare-and-set, so any number of workers may do it. Which server answers is this process's own
knowledge; only a fact about the server (another process, fewer slots) changes its row.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from django.conf import settings
from django.db import Error, connection

from slots import foreign, leases, probing, servers
from slots.models import Server, Slot

logger = logging.getLogger(__name__)

EVERY_SECONDS = 1.0

Thing = TypeVar("Thing")


class Watch(threading.Thread):
    """Looks at every server once a second; `reachable` are those that answer rightly from here."""

    def __init__(self) -> None:
        super().__init__(name="watch", daemon=True)
        self._reachable: frozenset[int] = frozenset()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._hurry = threading.Event()
        self._reaps_from = time.monotonic() + settings.LEASE_REAP_GRACE
        self._pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="look")
        # Apart from the looks: a probe of a slow server must not keep the others from being looked after.
        self._probes = ThreadPoolExecutor(max_workers=4, thread_name_prefix="probe")
        self._trying: set[int] = set()

    @property
    def reachable(self) -> list[int]:
        return sorted(self._reachable)

    @property
    def trying(self) -> bool:
        """Whether this process probes a server."""
        return bool(self._trying)

    def doubt(self, server: int) -> None:
        """A request failed there: nothing more is sent until it was looked at again."""
        with self._lock:
            self._reachable -= {server}
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
        known = list(Server.objects.exclude(state=Server.State.RETIRED))
        with self._lock:
            self._reachable &= {server.pk for server in known}
        list(self._pool.map(_in_thread(self._look), known))
        # A newcomer takes over first what its predecessor left: a reaped stream is a stopped one.
        for slot in leases.reap() if time.monotonic() > self._reaps_from else ():
            logger.warning("lease of a silent worker ended slot=%s grace=%ss", slot, settings.LEASE_REAP_GRACE)
        leases.leave_retired()
        stopping = Slot.objects.filter(condition=Slot.Condition.STOPPING, server__in=self._reachable)
        list(self._pool.map(_in_thread(servers.finish_stopping), stopping.select_related("server")))

    def _look(self, server: Server) -> bool:
        """What is found counts at once: a server that hangs must not keep the others from being used."""
        answers = servers.look(server)
        with self._lock:
            self._reachable = self._reachable | {server.pk} if answers else self._reachable - {server.pk}
        if answers and probing.due(server):
            self._try(server)
        elif answers:
            foreign.watch(server)
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
