"""Leases that have ended."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from django.db.models.functions import Now

from slots.models import PastLease

KEPT = timedelta(days=30)
NOBODY = UUID(int=0)  # the holder of those whose holder is no more: how slots were used is known without it


def forget() -> None:
    """Remove what has ended longer than KEPT ago."""
    PastLease.objects.filter(ended_at__lt=Now() - KEPT).delete()


def disown(holders: Sequence[UUID]) -> None:
    """Forget that these ever held a lease."""
    PastLease.objects.filter(holder__in=holders).update(holder=NOBODY)
