"""The session store (SESSION_ENGINE), and who a session belongs to.

One row signs a person in by cookie, by `X-Session-Token` and over the websocket alike: its key is the token, and
signing out deletes it for all three.
"""

from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user
from django.contrib.sessions.backends.db import SessionStore as DatabaseStore
from django.db.models import F
from django.http import HttpRequest
from django.utils.crypto import constant_time_compare

from chatbackend.accounts.models import User
from slots import statements

_COLUMNS = [field.attname for field in User._meta.concrete_fields]
_SESSION = """
SELECT s.session_data, {columns} FROM django_session s CROSS JOIN accounts_user person
WHERE s.session_key = %(key)s AND s.expire_date > statement_timestamp()
  AND person.id = %(person)s AND person.is_active""".format(columns=", ".join(f"person.{name}" for name in _COLUMNS))

# A condition for a statement's WHERE, with what `Seen.about` gives: nothing has changed of what was seen to be valid.
AS_SEEN = """EXISTS (
  SELECT FROM django_session s CROSS JOIN accounts_user person
  WHERE s.session_key = %(session)s AND s.session_data = %(session_data)s AND s.expire_date > statement_timestamp()
    AND person.id = %(session_of)s AND person.is_active
    AND person.password = %(password)s AND person.sessions_ended = %(sessions_ended)s)"""


@dataclass(frozen=True, slots=True)
class Seen:
    """A valid session as it was read, and whose it is."""

    person: User
    key: str
    data: str

    @property
    def about(self) -> dict[str, Any]:
        """Parameters of AS_SEEN."""
        return {
            "session": self.key, "session_data": self.data, "session_of": self.person.pk,
            "password": self.person.password, "sessions_ended": self.person.sessions_ended,
        }  # fmt: skip


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


def still(key: str, person: int) -> User | None:
    """The same for whoever was found signed in as `person` before: one query, where nothing changed since."""
    known = seen(key, person)
    return known.person if known else person_of(key)


def seen(key: str, person: int) -> Seen | None:
    """The session `key` of `person` as it is now; None if it is not valid, or may have become another's."""
    row = statements.row(_SESSION, {"key": key, "person": person})
    if row is None:
        return None
    said, *values = row
    user, kept = User.from_db(None, _COLUMNS, values), SessionStore(key).decode(said)
    as_it_was = (
        kept.get(SESSION_KEY) == str(person)
        and kept.get(BACKEND_SESSION_KEY) in settings.AUTHENTICATION_BACKENDS
        and constant_time_compare(kept.get(HASH_SESSION_KEY, ""), user.get_session_auth_hash())
    )
    return Seen(user, key, said) if as_it_was else None


def end_all(person: User) -> None:
    """End every session of `person`; one that shall go on needs Django's `update_session_auth_hash`."""
    person.sessions_ended = F("sessions_ended") + 1
    person.save(update_fields=["sessions_ended"])
    person.refresh_from_db(fields=["sessions_ended"])
