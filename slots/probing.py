"""The probe of one process, once: claimed by one worker, run, judged, stored.

A probe holds its server by `probe` and `probing_until`, renewed ahead of each canary: of several workers one sends,
and one that dies leaves the server to the next after PROBE_SECONDS. What a probe finds counts only if no slot was
leased meanwhile. On a server with leases nothing is sent.
"""

import logging
import time
import uuid
from dataclasses import dataclass, field
from datetime import timedelta

from django.db import transaction
from django.db.models import Case, F, Q, QuerySet, TextField, Value, When
from django.db.models.functions import Now

from slots import grades, leases, parked, probe
from slots.client import ServerError, ServerFailed, ServerRefused
from slots.grades import Grade, Verdict
from slots.models import Server
from slots.probe import Canaries, Disturbed
from slots.servers import NOT_GRADED, client_of

logger = logging.getLogger(__name__)

State = Server.State

PROBE_SECONDS = 30.0  # from one canary to the next; more than the longest that a canary is waited for
AGAIN_SECONDS = 2.0  # after a try that came to nothing
TRIES = 3
NOT_SUPPORTED = 501  # llama-server's word for what it was not started for


class ClaimLost(Exception):
    """Another worker probes this server by now, or its process is gone: send nothing more, store nothing."""


@dataclass(frozen=True)
class Claim:
    """The right to send canaries to one process."""

    server: Server
    fence: int  # the newest of its slots' when they were vacated
    id: uuid.UUID = field(default_factory=uuid.uuid4)

    def renew(self) -> None:
        """Before each canary. Raises ClaimLost."""
        if not _mine(self).update(probing_until=Now() + timedelta(seconds=PROBE_SECONDS)):
            raise ClaimLost(f"server={self.server.url}")


def due(server: Server) -> bool:
    """Whether its process waits to be tried; by the row as it was read."""
    return server.state == State.PROBING and not server.grade


def run(server: Server) -> bool:
    """Try the process behind `server` unless somebody else does; whether its grade is known now."""
    claim = _claimed(server)
    if claim is None:
        return False
    began = time.monotonic()
    try:
        verdict = _verdict(claim)
    except ClaimLost:
        logger.warning("server=%s: another worker probes it, or its process is gone", server.url)
        return False
    except ServerError as error:
        _put_off(claim, str(error))
        return False
    return _stored(claim, verdict, time.monotonic() - began)


def again(server: Server) -> bool:
    """An administrator's wish: try the same process once more. False while an answer is being written there."""
    with transaction.atomic():
        leases.end_if_paused()
        row = Server.objects.select_for_update(of=("self",), no_key=True).get(pk=server.pk)
        if row.state not in (State.READY, State.UNUSABLE, State.PROBING) or row.boot is None:
            return False
        if leases.vacate(row.pk, row.total_slots or 0) is None:
            return False
        Server.objects.filter(pk=row.pk).update(state=State.PROBING, **NOT_GRADED)
    return True


def _claimed(server: Server) -> Claim | None:
    with transaction.atomic():
        leases.end_if_paused()
        free = Q(probing_until=None) | Q(probing_until__lt=Now())
        waiting = Server.objects.select_for_update(of=("self",), no_key=True, skip_locked=True)
        row = waiting.filter(free, pk=server.pk, boot=server.boot, state=State.PROBING, grade="").first()
        if row is None:
            return None
        fence = leases.vacate(row.pk, row.total_slots or 0)
        if fence is None:
            return None
        claim = Claim(row, fence)
        until = Now() + timedelta(seconds=PROBE_SECONDS)
        Server.objects.filter(pk=row.pk).update(probe=claim.id, probing_until=until, probes=F("probes") + 1)
    claim.server.probes += 1
    return claim


def _verdict(claim: Claim) -> Verdict:
    """Raises ServerError for a try that came to nothing and may be repeated."""
    client, tries = client_of(claim.server), claim.server.probes
    props = client.props()
    try:
        found = Canaries(client, probe.plan(client.slots()), claim.renew, filename(claim.server)).run()
    except Disturbed as error:
        if tries < TRIES:
            raise
        logger.warning("server=%s: %s", claim.server.url, error)
        return grades.disturbed(props)
    except (ServerRefused, ServerFailed) as error:
        if error.status != NOT_SUPPORTED and tries < TRIES:
            raise
        return probe.rejection(error)
    return grades.judge(found, props)


def filename(server: Server) -> str:
    """The one file that a probe of this server writes: llama-server cannot delete files, so the name is the same."""
    return f"{parked.installation()}-{server.pk}-probe"


def _mine(claim: Claim) -> QuerySet[Server]:
    return Server.objects.filter(pk=claim.server.pk, boot=claim.server.boot, probe=claim.id, grade="")


def _put_off(claim: Claim, sentence: str) -> None:
    logger.warning("server=%s could not be tried: %s", claim.server.url, sentence)
    _mine(claim).update(costs=sentence, probe=None, probing_until=Now() + timedelta(seconds=AGAIN_SECONDS))


def _stored(claim: Claim, verdict: Verdict, seconds: float) -> bool:
    usable = verdict.grade != Grade.UNUSABLE
    after = Value((State.READY if usable else State.UNUSABLE).value)
    with transaction.atomic():
        leases.end_if_paused()
        Server.objects.select_for_update(of=("self",), no_key=True).get(pk=claim.server.pk)
        if not leases.untouched(claim.server.pk, claim.fence):
            _put_off(claim, "A slot was leased while it was tried.")
            return False
        stored = _mine(claim).update(
            grade=verdict.grade, costs=verdict.costs, cure=verdict.cure, parks_in_ram=verdict.parks_in_ram,
            parking=verdict.parking, fingerprint=verdict.fingerprint, graded_at=Now(), probe=None, probing_until=None,
            state=Case(When(state=State.PROBING, then=after), default=F("state"), output_field=TextField()),
        )  # fmt: skip
        if stored and verdict.grade == Grade.ONE_AT_A_TIME:
            leases.leave_unused(claim.server.pk)
        if stored and verdict.parking == Server.Parking.EFFECTIVE:
            parked.provide(claim.server.pk)
            parked.misfits(claim.server.pk, verdict.fingerprint)
    logger.info("server=%s grade=%s in %.2f s: %s", claim.server.url, verdict.grade, seconds, verdict.costs)
    return bool(stored)
