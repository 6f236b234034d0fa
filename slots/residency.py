"""What of a holder's tokens a slot's cache still holds: a fact about the cache, not a right to it.

For telling people beforehand what something costs. Until then anybody may get the slot.
"""

import uuid
from typing import Any

from slots.models import Server, Slot


def outline(holder: uuid.UUID) -> Any:
    """What `holder` noted, at its last release, of the slot that it would get now; None where that would be empty."""
    ready = Slot.objects.filter(condition=Slot.Condition.READY, server__state=Server.State.READY)
    held = ready.filter(kv_of=holder, kv_tokens__gt=0).exclude(phase=Slot.Phase.BUSY)
    # One that it moved away from may hold an older state; its lease is where it was used last.
    return held.order_by("-used_at").values_list("kv_outline", flat=True).first()
