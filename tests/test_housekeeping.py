"""What nobody asks for any more goes; what somebody still needs stays."""

from datetime import timedelta

import pytest
from django.contrib.sessions.models import Session
from django.db.models import F
from django.db.models.functions import Now

from chatbackend.accounts import invites
from chatbackend.accounts.models import Invite
from conversations.worker import housekeeping
from slots import leases, past
from slots.models import PastLease
from tests import factories
from tests.web import session_of

pytestmark = pytest.mark.django_db


def test_only_what_ended_long_ago_goes() -> None:
    session_of("alice")
    ended = session_of("bob")
    Session.objects.filter(pk=ended).update(expire_date=Now() - timedelta(seconds=1))
    for days in (0, 8, 29, 38):
        invites.create()
        Invite.objects.filter(pk=Invite.objects.latest("pk").pk).update(
            expires_at=F("expires_at") - timedelta(days=days)
        )
    server = factories.server()
    for days in (past.KEPT.days - 1, past.KEPT.days + 1):
        leases.release(factories.leased(server), 10, 1)
        PastLease.objects.filter(pk=PastLease.objects.latest("pk").pk).update(
            began_at=Now() - timedelta(days=days), ended_at=Now() - timedelta(days=days)
        )
    housekeeping.tidy()
    assert Session.objects.count() == 1
    assert not Session.objects.filter(pk=ended).exists()
    assert Invite.objects.count() == 3
    assert PastLease.objects.count() == 1
