from collections.abc import Iterable
from functools import partial
from typing import Any

from django.apps import AppConfig
from django.db import transaction
from django.db.models.signals import post_delete, post_save

DECIDE_SESSIONS = {"password", "is_active", "sessions_ended"}  # fields of a person


class ConversationsConfig(AppConfig):
    name = "conversations"

    def ready(self) -> None:
        from django.contrib.sessions.models import Session

        from chatbackend.accounts.models import User

        post_delete.connect(_session_ended, sender=Session, dispatch_uid="conversations.session_ended")
        post_save.connect(_person_saved, sender=User, dispatch_uid="conversations.person_saved")


def _session_ended(instance: Any, **about: Any) -> None:
    """Sockets look at their session with each frame they get; this makes those look that only listen."""
    from django.contrib.auth import SESSION_KEY

    person = instance.get_decoded().get(SESSION_KEY)
    if person:
        # Not before: a socket that looks at once would still find the row, and never look again.
        transaction.on_commit(partial(_check_sessions, int(person)), robust=True)


def _person_saved(instance: Any, created: bool, update_fields: Iterable[str] | None, **about: Any) -> None:
    """A new password, a disabled account and "sign out everywhere" end sessions whose rows stay."""
    if not created and (update_fields is None or DECIDE_SESSIONS & set(update_fields)):
        transaction.on_commit(partial(_check_sessions, instance.pk), robust=True)


def _check_sessions(person: int) -> None:
    from conversations import events

    events.publish_to_person(person, {"type": events.SESSION_CHECK})
