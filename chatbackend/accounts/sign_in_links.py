"""One-time sign-in links: for the first administrator, and for whoever is locked out."""

import hashlib
import secrets
from datetime import timedelta

from django.db.models import Q
from django.db.models.functions import Now

from chatbackend.accounts.models import SignInLink, User

MINUTES = 10
KEPT = timedelta(days=1)  # after its end a link can still say that it was used or came too late


class Refused(Exception):
    """The link signs nobody in; `code` and the sentence say why."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


def create(person: User) -> str:
    """A new token, good for one sign-in within MINUTES minutes."""
    SignInLink.objects.filter(expires_at__lt=Now() - KEPT).delete()
    token = secrets.token_urlsafe(32)
    SignInLink.objects.create(digest=_digest(token), person=person, expires_at=Now() + timedelta(minutes=MINUTES))
    return token


def check(token: str) -> User:
    """Whom `token` would sign in now. Spends nothing. Raises Refused."""
    found = SignInLink.objects.filter(digest=_digest(token)).select_related("person")
    link = found.annotate(expired=Q(expires_at__lte=Now())).first()
    if link is None:
        raise Refused("link_unknown", "There is no such sign-in link; perhaps a part of it is missing.")
    if link.used_at:
        raise Refused("link_spent", "This sign-in link has been used, and it works only once.")
    if link.expired:
        raise Refused("link_expired", f"This sign-in link is too old: it works for {MINUTES} minutes.")
    if not link.person.is_active:
        raise Refused("disabled", "This account is disabled.")
    return link.person


def spend(token: str) -> User:
    """Whom `token` signs in now. Of two at once for one, the other raises Refused like a used link."""
    person = check(token)
    # No join in here: the row's own columns are what Postgres looks at again after waiting for another's update.
    unused = SignInLink.objects.filter(digest=_digest(token), used_at=None, expires_at__gt=Now())
    if not unused.update(used_at=Now()):
        check(token)
        raise Refused("link_spent", "This sign-in link has been used, and it works only once.")
    return person


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
