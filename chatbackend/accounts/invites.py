"""Invitation codes: made, looked at, and used exactly once."""

import hashlib
import secrets
from datetime import timedelta

from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from chatbackend.accounts.models import Invite, User

DAYS = 7
KEPT = timedelta(days=30)  # after its end an invitation can still say what became of it
MOST_OPEN = 10  # invitations of one person, of the staff's any number


class Refused(Exception):
    """The code lets nobody in; `code` and the sentence say why."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


def create(created_by: User | None = None) -> str:
    """A new code, good for one sign-up within DAYS days."""
    code = secrets.token_urlsafe(16)
    Invite.objects.create(digest=_digest(code), created_by=created_by, expires_at=Now() + timedelta(days=DAYS))
    return code


def create_for(person: User) -> str:
    """A new code on behalf of `person`. Raises Refused while MOST_OPEN of theirs can still be used."""
    if person.is_staff:
        return create(person)
    with transaction.atomic():
        # One invitation of a person after the other, so that two requests at once do not both find room.
        User.objects.select_for_update(of=("self",), no_key=True).get(pk=person.pk)
        if Invite.objects.filter(created_by=person, used_at=None, expires_at__gt=Now()).count() >= MOST_OPEN:
            raise Refused(
                "too_many_invites", f"You have {MOST_OPEN} invitations that nobody has used yet: hand them out first."
            )
        return create(person)


def check(code: str) -> None:
    """Raises Refused unless `code` could be used now."""
    if not code:
        raise Refused("invite_missing", "Signing up needs an invitation: send its code as `invite`.")
    found = Invite.objects.filter(digest=_digest(code)).annotate(expired=Q(expires_at__lte=Now())).first()
    if found is None:
        raise Refused("invite_unknown", "There is no such invitation: check the code.")
    if found.used_at:
        raise Refused("invite_spent", "This invitation has been used: ask for another.")
    if found.expired:
        raise Refused("invite_expired", "This invitation has expired: ask for another.")


def use(code: str) -> Invite:
    """Lock the invitation until the end of the transaction, for `spend`. Raises Refused; of two at once, for one."""
    locked = Invite.objects.select_for_update(of=("self",), no_key=True)
    invite = locked.filter(digest=_digest(code), used_at=None, expires_at__gt=Now()).first()
    if invite is None:
        check(code)
        raise Refused("invite_spent", "This invitation has been used: ask for another.")
    return invite


def spend(invite: Invite, person: User) -> None:
    Invite.objects.filter(pk=invite.pk, used_at=None).update(used_at=Now(), used_by=person)


def forget() -> None:
    """Remove what has ended longer than KEPT ago."""
    Invite.objects.filter(expires_at__lt=Now() - KEPT).delete()


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode("utf-8", "replace")).digest()
