"""What every worker does for files while a server is quiet: it parks ahead, and overwrites what must not be kept.

A cache that lies in a file already is evicted without a word, and found again by the next llama-server process. So a
moment after its turn an idle lease is taken for a moment (work `park`), one at a time on a server where nothing else
runs; its holder's next turn takes the slot back whatever happens. Files that are due are overwritten from a free slot
(work `wipe`), or after a while from the idle one that is cheapest to lose.
"""

import logging
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from django.conf import settings
from django.db import Error, connection, transaction

from slots import leases, parked, parking, servers
from slots.client import ServerError
from slots.grants import Former, Grant, LeaseLost
from slots.models import Server, Slot
from slots.parked import Unparked
from slots.renewal import Held, Renewal
from slots.watch import Watch

logger = logging.getLogger(__name__)

EVERY_SECONDS = 1.0
AFTER_SECONDS = 2.0  # a turn; who answers at once does not meet us
MOST_TRIED = 4_096  # caches; more than the slots that one installation has
PATIENCE_SECONDS = 600.0  # that files wait for a free slot, or for another one that costs somebody their cache
AGAIN_SECONDS = 60.0  # after the server did not do it: a full disk, or a save that hangs, is not over in a second

# One worker at a time looks for something to park on a server: the next one finds it busy.
_ALONE = "SELECT pg_try_advisory_xact_lock(hashtextextended('chatbackend park', %s))"


class ParkingAhead(threading.Thread):
    """Looks once a second, on every server that its worker reaches."""

    def __init__(self, worker: UUID, watch: Watch, renewal: Renewal) -> None:
        super().__init__(name="parking-ahead", daemon=True)
        self._worker, self._watch, self._renewal = worker, watch, renewal
        self._provided: set[int] = set()
        self._tried: dict[UUID, datetime] = {}  # in vain, or not for this one: when its slot had been used last
        self._wipes_from: dict[int, float] = {}  # by server, in monotonic seconds: where it was of no use
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        while not self._stopped.wait(EVERY_SECONDS):
            try:
                self.round()
            except Error as error:
                logger.warning("nothing is parked ahead: %s", error)
            finally:
                connection.close()

    def round(self) -> None:
        """Do once what is due."""
        reachable = self._watch.reachable
        if not reachable:
            return
        self._provide(reachable)
        if count := parked.abandoned():
            logger.info("parked files=%s were not finished by those who wrote them", count)
        for server, seconds in parked.due_on(reachable).items():
            if time.monotonic() >= self._wipes_from.get(server, 0.0):
                self._wipe(server, evicting=seconds > PATIENCE_SECONDS)
        if settings.LLAMA_PARKED:
            for server in reachable:
                self._park_on(server)

    def _provide(self, reachable: Sequence[int]) -> None:
        """Once, as LLAMA_PARKED may be another one than when the server was probed."""
        if new := set(reachable) - self._provided:
            works = Server.objects.filter(pk__in=new, parking=Server.Parking.EFFECTIVE)
            for server in works.values_list("pk", flat=True):
                parked.provide(server)
                self._provided.add(server)

    def _park_on(self, server: int) -> None:
        found = self._lease(server)
        if found is None:
            return
        grant, one = found
        held = self._hold(grant)
        try:
            self._park(held, one)
            leases.release(grant, grant.kv_tokens, grant.kv_task, grant.kv_outline, used=False)
        except LeaseLost:
            logger.info("slot=%s is wanted: not parked ahead", grant.slot)
        finally:
            self._renewal.let_go(held)

    def _lease(self, server: int) -> tuple[Grant, Unparked] | None:
        """A slot of `server` to park ahead, whose holder nothing else is done for."""
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(_ALONE, [server])
            if cursor.fetchone() != (True,):
                return None
            found = parked.unparked([server], parking.WORTH, AFTER_SECONDS)
            one = next((one for one in found if self._tried.get(one.holder) != one.used_at), None)
            grant = leases.acquire(one.holder, self._worker, [server], work=Slot.Work.PARK) if one else None
        if one is None or grant is None:
            return None
        self._note_tried(one)
        return grant, one

    def _note_tried(self, one: Unparked) -> None:
        """Until many others were tried: who is not found has not gone, a slot that was just tried counts as used."""
        self._tried.pop(one.holder, None)
        self._tried[one.holder] = one.used_at
        if len(self._tried) > MOST_TRIED:
            del self._tried[next(iter(self._tried))]

    def _park(self, held: Held, one: Unparked) -> None:
        grant, server = held.grant, servers.get(one.server)
        connection.close()
        client = servers.client_of(server)
        try:
            before = servers.wait_until_quiet(client, grant.id_slot, total=server.total_slots)
        except ServerError as error:
            logger.warning("slot=%s is not known to be quiet: %s", grant.slot, error)
            return
        former = Former(grant.holder, grant.kv_tokens or 0, grant.kv_task, grant.kv_outline, one.used_at)
        if former.shown_by(before) and (learned := parking.park(client, held, former, ahead=True)):
            parking.learn(server.pk, server.boot, learned)

    def _wipe(self, server: int, *, evicting: bool) -> None:
        grant = leases.acquire_to_wipe(self._worker, server, evicting=evicting)
        if grant is None:
            return
        row, held = servers.get(server), self._hold(grant)
        connection.close()
        client = servers.client_of(row)
        try:
            before = servers.wait_until_quiet(client, grant.id_slot, total=row.total_slots)
            if grant.former and grant.former.shown_by(before) and parking.works(row):
                parking.park(client, held, grant.former)
            count = parking.wipe(client, held)
            logger.info("server=%s overwrote parked files=%s", row.url, count)
        except ServerError as error:
            logger.warning("server=%s: parked files are still to be overwritten: %s", row.url, error)
            self._wipes_from[server] = time.monotonic() + (PATIENCE_SECONDS if evicting else AGAIN_SECONDS)
        except LeaseLost:
            logger.info("slot=%s is wanted: parked files are overwritten later", grant.slot)
        finally:
            self._renewal.let_go(held)
            _give_back(grant)

    def _hold(self, grant: Grant) -> Held:
        held = Held(grant, lambda: None)
        self._renewal.hold(held)
        return held


def _give_back(grant: Grant) -> None:
    try:
        leases.give_back(grant)
    except LeaseLost:
        logger.info("slot=%s was taken by a turn", grant.slot)
