"""The session store (SESSION_ENGINE), and who a session belongs to.

One row signs a person in by cookie, by `X-Session-Token` and over the websocket alike: its key is the token, and
signing out deletes it for all three.
"""

from django.contrib.auth import get_user
from django.contrib.sessions.backends.db import SessionStore as DatabaseStore
from django.db.models import F
from django.http import HttpRequest

from chatbackend.accounts.models import User


class SessionStore(DatabaseStore):
    def _validate_session_key(self, key: str | None) -> bool:
        """A cookie can carry what Postgres refuses as text (NUL): only what we could have made is looked up."""
        return key is not None and key.isascii() and key.isalnum() and 8 <= len(key) <= 40


def person_of(key: str) -> User | None:
    """Who is signed in by the session `key`; None when it is unknown, ended, or its person may not sign in any more."""
    request = HttpRequest()
    request.session = SessionStore(key)
    user = get_user(request)
    return user if isinstance(user, User) else None


def end_all(person: User) -> None:
    """End every session of `person`; one that shall go on needs Django's `update_session_auth_hash`."""
    person.sessions_ended = F("sessions_ended") + 1
    person.save(update_fields=["sessions_ended"])
    person.refresh_from_db(fields=["sessions_ended"])
