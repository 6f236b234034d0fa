"""Settings that only make sense together."""

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, register


@register("slots")
def lease_timings(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Three missed heartbeats, not one, make a lease takeable (shared clock: the database's)."""
    if settings.LEASE_TTL >= 3 * settings.LEASE_HEARTBEAT:
        return []
    return [
        Error(
            f"LEASE_TTL ({settings.LEASE_TTL:g} s) is shorter than three heartbeats "
            f"(3 × LEASE_HEARTBEAT = {3 * settings.LEASE_HEARTBEAT:g} s).",
            hint="Raise LEASE_TTL or lower LEASE_HEARTBEAT.",
            id="slots.E001",
        )
    ]
