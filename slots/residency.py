"""What of a holder's tokens a slot's cache still holds: a fact about the cache, not a right to it.

For telling people beforehand what something costs. Until then anybody may get the slot.
"""

import uuid
from dataclasses import dataclass
from typing import Any

from slots.models import Server, Slot


@dataclass(frozen=True, slots=True)
class Resident:
    tokens: int
    outline: Any  # what the holder noted of them at its last release


def of(holder: uuid.UUID) -> Resident | None:
    """What the slot holds that `holder` would get now; None where it would begin with an empty one."""
    ready = Slot.objects.filter(condition=Slot.Condition.READY, server__state=Server.State.READY)
    found = ready.filter(kv_of=holder, kv_tokens__gt=0).exclude(phase=Slot.Phase.BUSY).first()
    return Resident(found.kv_tokens or 0, found.kv_outline) if found else None
