"""Whose a socket is: asked at each of its frames, as a session that ended elsewhere ends here too."""

from chatbackend.accounts import sessions
from chatbackend.accounts.models import User
from chatbackend.accounts.sessions import Seen
from conversations import errors


class SignedIn:
    """A session by its `key`. Not for two threads at once."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.seen: Seen | None = None  # as it was when it was asked for last; None: that is no ground for anything
        self._person: User | None = None

    def check(self) -> User:
        """Ask whose it is. Raises NotSignedIn; also when it has become another person's."""
        before = self._person
        self.seen = sessions.seen(self.key, before.pk) if before else None
        person = self.seen.person if self.seen else sessions.person_of(self.key)
        if person is None or (before and person != before):
            raise errors.NotSignedIn("This session is unknown or has ended: sign in again.")
        self._person = person
        return person
