"""The heartbeat of one worker process: one statement renews every lease whose work still moves."""

import logging
import threading
import time
from collections.abc import Callable

from django.conf import settings
from django.db import Error, connection, transaction

from slots import leases
from slots.grants import Grant, LeaseLost

logger = logging.getLogger(__name__)


class Held:
    """A lease this process works under. `lost` is set when Postgres shows another fence."""

    def __init__(self, grant: Grant, on_lost: Callable[[], None]) -> None:
        self.grant = grant
        self.lost = threading.Event()
        self._on_lost = on_lost
        self._renewed_at = grant.asked_at
        self._moved_at = time.monotonic()

    def moved(self) -> None:
        """Work under this lease got on. Without this for LLAMA_SILENCE it is not renewed: a hung thread lets go."""
        self._moved_at = time.monotonic()

    def still_moves(self) -> bool:
        return time.monotonic() < self._moved_at + settings.LLAMA_SILENCE

    def renewed(self, asked_at: float) -> None:
        self._renewed_at = asked_at

    def lose(self) -> None:
        if not self.lost.is_set():
            self.lost.set()
            self._on_lost()

    def confirm(self) -> None:
        """Before anything is sent to a server: raises LeaseLost unless the lease has surely time left.

        One that yields is asked for each time: a restore that arrives behind the request of the turn which took the
        slot is done after that, and leaves there what the turn would be recorded to have left. Raises what Postgres
        raises while it cannot be asked.
        """
        margin = min(2.0, settings.LEASE_TTL / 5)
        if self.grant.yields or time.monotonic() > self._renewed_at + settings.LEASE_TTL - margin:
            asked_at = time.monotonic()
            if not leases.renew([self.grant]):
                self.lose()
            self.renewed(asked_at)
        if self.lost.is_set():
            raise LeaseLost(f"slot={self.grant.slot} fence={self.grant.fence}")


class Renewal(threading.Thread):
    """Renews what is held every LEASE_HEARTBEAT seconds until stopped. Postgres away: it tries again, and waits."""

    def __init__(self) -> None:
        super().__init__(name="renewal", daemon=True)
        self._held: dict[int, Held] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def hold(self, held: Held) -> None:
        with self._lock:
            self._held[held.grant.fence] = held

    def let_go(self, held: Held) -> bool:
        """Renew it no more; False if it was let go before, so that its end is no loss."""
        with self._lock:
            return self._held.pop(held.grant.fence, None) is not None

    def held(self) -> list[Held]:
        with self._lock:
            return list(self._held.values())

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        while not self._stopped.wait(settings.LEASE_HEARTBEAT):
            try:
                self.beat()
            except Error as error:
                logger.warning("leases could not be renewed: %s", error)
                connection.close()

    def beat(self) -> None:
        """Renew once."""
        held = [one for one in self.held() if one.still_moves()]
        if not held:
            return
        asked_at = time.monotonic()
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL statement_timeout = '2s'")
            alive = leases.renew([one.grant for one in held])
        for one in held:
            if one.grant.fence in alive:
                one.renewed(asked_at)
            elif self.let_go(one):
                logger.warning("lease lost slot=%s fence=%s", one.grant.slot, one.grant.fence)
                one.lose()
