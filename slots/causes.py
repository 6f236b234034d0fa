"""What the leases that a conversation had tell: why it finds no warm slot, and where it failed."""

import uuid
from datetime import timedelta

from django.db.models.functions import Now

from slots.models import PastLease, Slot

Ended = PastLease.EndedBy

_CAUSES = {
    Ended.EXPIRED: "expired",
    Ended.EVICTED: "evicted",
    Ended.PREEMPTED: "evicted",
    Ended.REVOKED: "evicted",
    Ended.SERVER_RESTARTED: "server_restarted",
    Ended.MOVED: "moved",
}


def why_cold(holder: uuid.UUID, server: int) -> str:
    """The cause of its replay on `server`: how its newest closed lease ended, or what became of that server since.

    A turn that was broken off goes on elsewhere (`moved`), or where it was with a cache that nobody knows.
    """
    last = PastLease.objects.filter(holder=holder).order_by("-fence").select_related("slot__server").first()
    if last is None:
        return "cache_lost"
    broken_off = last.ended_by == Ended.REVOKED and last.phase == Slot.Phase.BUSY
    if broken_off and last.slot.server_id != server:
        return "moved"
    boot_at = last.slot.server.boot_at
    if boot_at and boot_at > last.ended_at:
        return "server_restarted"
    if broken_off:
        return "cache_lost"
    return _CAUSES.get(Ended(last.ended_by), "cache_lost")


def failed_lately(holder: uuid.UUID, seconds: float) -> set[int]:
    """The servers on which a turn of `holder` was broken off within so many seconds."""
    turns = PastLease.objects.filter(holder=holder, phase=Slot.Phase.BUSY, work=Slot.Work.TURN)
    broken_off = turns.filter(ended_by=Ended.REVOKED)
    lately = broken_off.filter(ended_at__gt=Now() - timedelta(seconds=seconds))
    return set(lately.values_list("slot__server", flat=True))
