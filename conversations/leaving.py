"""What becomes of a person's conversations when an administrator disables or removes their account."""

import logging

from django.db import transaction

from conversations import actions, events, turns
from conversations.models import Conversation, Generation
from slots import leases

logger = logging.getLogger(__name__)


def silence(person: int) -> int:
    """Stop whatever is being answered or waits for `person`; how many that were. What is written stays."""
    live = list(Generation.objects.filter(owner=person, status__in=Generation.LIVE).values_list("pk", flat=True))
    for generation in live:
        actions.cancel(person, generation)
    return len(live)


def remove(person: int) -> None:
    """Remove every conversation of `person`, in the caller's transaction, before the person goes.

    A worker that is answering finds the rows gone, stops the stream and gives the slot back.
    """
    with transaction.atomic():
        leases.end_if_paused()
        # Generations before messages, as a worker locks them that ends one at this moment.
        list(Generation.objects.select_for_update(of=("self",)).filter(owner=person))
        count, _ = Conversation.objects.filter(owner=person).delete()
        turns.wake()
        # Their open sockets look at once whether their session still counts.
        transaction.on_commit(lambda: events.publish_to_person(person, {"type": events.SESSION_CHECK}))
    logger.info("removed conversations=%s of person=%s", count, person)
