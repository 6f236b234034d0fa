"""What of a holder's tokens a slot's cache still holds, or a file that would be restored: a fact, not a right to it.

For telling people beforehand what something costs. Until then anybody may get the slot.
"""

import uuid
from typing import Any

from django.db.models import F

from slots.models import Park, Server, Slot


def outline(holder: uuid.UUID) -> Any:
    """What `holder` noted, at its last release, of what it would find now: in the slot that it would get, else in a
    file that would be restored there. None where there is neither.
    """
    ready = Slot.objects.filter(condition=Slot.Condition.READY, server__state=Server.State.READY)
    held = ready.filter(kv_of=holder, kv_tokens__gt=0).exclude(phase=Slot.Phase.BUSY)
    # One that it moved away from may hold an older state; its lease is where it was used last.
    if slot := held.order_by("-used_at").values_list("kv_outline").first():
        return slot[0]
    files = Park.objects.filter(holder=holder, state=Park.State.READY, fingerprint=F("server__fingerprint"))
    usable = files.filter(server__state=Server.State.READY, server__parking=Server.Parking.EFFECTIVE)
    return usable.order_by("-saved_at").values_list("outline", flat=True).first()
