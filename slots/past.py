"""Leases that have ended."""

from datetime import timedelta

from django.db.models.functions import Now

from slots.models import PastLease

KEPT = timedelta(days=30)


def forget() -> None:
    """Remove what has ended longer than KEPT ago."""
    PastLease.objects.filter(ended_at__lt=Now() - KEPT).delete()
