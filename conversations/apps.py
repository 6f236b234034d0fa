from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_delete


class ConversationsConfig(AppConfig):
    name = "conversations"

    def ready(self) -> None:
        from django.contrib.sessions.models import Session

        post_delete.connect(_session_ended, sender=Session, dispatch_uid="conversations.session_ended")


def _session_ended(instance: Any, **about: Any) -> None:
    """Sockets look at their session with each frame they get; this makes those look that only listen."""
    from django.contrib.auth import SESSION_KEY

    from conversations import events

    person = instance.get_decoded().get(SESSION_KEY)
    if person:
        events.publish_to_person(int(person), {"type": events.SESSION_CHECK})
