"""What becomes of a person's conversations when an administrator disables or removes their account."""

import contextlib
import logging

from django.db import transaction

from conversations import actions, deleting, errors, events
from conversations.models import Conversation, Generation

logger = logging.getLogger(__name__)


def silence(person: int) -> int:
    """Stop whatever is being answered or waits for `person`; how many that were. What is written stays."""
    live = Generation.objects.filter(owner=person, conversation__deleted_at=None, status__in=Generation.LIVE)
    stopped = 0
    for generation in list(live):
        with contextlib.suppress(errors.NotFound):  # its conversation was deleted at this moment, which stops it too
            actions.cancel(person, generation.pk)
            stopped += 1
    return stopped


def remove(person: int) -> None:
    """Remove every conversation of `person`, in the caller's transaction, before the person goes.

    Also those that were deleted and could still be had back.
    """
    with transaction.atomic():
        count = deleting.remove(Conversation.objects.filter(owner=person), wait=True)
        # Their open sockets look at once whether their session still counts.
        transaction.on_commit(lambda: events.publish_to_person(person, {"type": events.SESSION_CHECK}))
    logger.info("removed conversations=%s of person=%s", count, person)
