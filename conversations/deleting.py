"""Deleting a conversation: hidden from everybody at once, had back for UNDO, then removed for good.

Hidden means that it does not exist for anybody (`conversations.access`), that nothing runs in it and that it holds no
lease. Removing takes its text, titles and generations, and what leases know of it. Lock order: conversation, slot rows,
generations.
"""

from datetime import timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now

from conversations import access, errors, turns
from conversations.models import Conversation, Generation
from slots import leases, parked, past

UNDO = timedelta(seconds=30)
TOO_LATE = f"There is nothing with this id to restore: that is possible for {UNDO.seconds} seconds."
AT_ONCE = 100  # conversations in one transaction


def hide(person: int, conversation: UUID) -> None:
    """Take it from everybody's sight and stop what runs there. Raises NotFound."""
    with transaction.atomic():
        leases.end_if_paused()
        # A send locks the row as well: it comes before, and is stopped, or finds nothing.
        rows = access.owned_by(person).select_for_update(of=("self",), no_key=True)
        if not rows.filter(pk=conversation).exists():
            raise errors.NotFound
        Conversation.objects.filter(pk=conversation).update(deleted_at=Now())
        leases.leave([conversation])
        turns.stop_all(conversation)


def restore(person: int, conversation: UUID) -> None:
    """Have it back as it was, what ran excepted; nothing happens to one that is there. Raises NotFound after UNDO."""
    mine = Conversation.objects.filter(pk=conversation, owner=person)
    if not mine.filter(deleted_at__gt=Now() - UNDO).update(deleted_at=None) and not mine.filter(deleted_at=None):
        raise errors.NotFound(TOO_LATE)


def remove_due() -> int:
    """Remove what nobody can have back any more, and end leases that were busy when theirs was hidden; how many went.

    Every worker may do this at any time.
    """
    hidden = Conversation.objects.filter(deleted_at__isnull=False)
    if left := list(hidden.values_list("pk", flat=True)):
        leases.leave(left)
    count = 0
    while removed := remove(hidden.filter(deleted_at__lte=Now() - UNDO)[:AT_ONCE]):
        count += removed
    return count


def forget_files() -> None:
    """Files of conversations that were removed while a worker was about to write them: it knew nothing of that.

    A conversation's id is of version 7; other holders are no conversations.
    """
    there = {holder for holder in parked.holders() if holder.version == 7}
    known = set(Conversation.objects.filter(pk__in=there).values_list("pk", flat=True))
    if gone := there - known:
        parked.forget(list(gone))


def remove(rows: QuerySet[Conversation], *, wait: bool = False) -> int:
    """Remove for good what nobody else has to do with at this moment, with `wait` all of it; how many that were.

    A worker that still answers there has lost its lease, and llama-server is told to stop.
    """
    with transaction.atomic():
        leases.end_if_paused()
        ids = list(rows.select_for_update(of=("self",), skip_locked=not wait).values_list("pk", flat=True))
        if ids:
            leases.forget(ids)
            past.disown(ids)
            # Generations before messages, as a worker locks them that ends one at this moment.
            list(Generation.objects.select_for_update(of=("self",)).filter(conversation__in=ids).values_list("pk"))
            Conversation.objects.filter(pk__in=ids).delete()
            turns.wake()
    return len(ids)
