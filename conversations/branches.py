"""The tree of a conversation's messages: which path through it is shown, and where a new message may go."""

import uuid

from django.db import connection, transaction

from conversations import errors, history
from conversations.models import Conversation, Generation, Message
from slots import leases

# From a message down, at each fork to what was written last.
_CHOOSE = """
WITH RECURSIVE below AS (
  SELECT %(message)s::uuid AS id, 0 AS depth
  UNION ALL
  SELECT newest.id, below.depth + 1 FROM below CROSS JOIN LATERAL (
    SELECT id FROM conversations_message WHERE parent_id = below.id ORDER BY id DESC LIMIT 1) newest)
UPDATE conversations_conversation SET leaf_id = (SELECT id FROM below ORDER BY depth DESC LIMIT 1)
WHERE id = %(conversation)s"""


def choose(message: Message) -> None:
    """Go on from `message`, and from what followed it last.

    Raises NotFound, and TurnInProgress while an answer is written: it would be one that nobody sees.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        leases.end_if_paused()
        rows = Conversation.objects.select_for_update(of=("self",), no_key=True)
        where = rows.filter(pk=message.conversation_id, deleted_at=None).first()
        if where is None:
            raise errors.NotFound
        refuse_while_answered(where, where.leaf_id)
        cursor.execute(_CHOOSE, {"message": message.pk, "conversation": where.pk})


def refuse_while_answered(where: Conversation, parent: uuid.UUID | None) -> None:
    """Raises TurnInProgress, with the messages newer than `parent`, while an answer is written or waited for."""
    live = Generation.objects.filter(conversation=where, status__in=Generation.LIVE).first()
    if live:
        newer = history.path(where.pk, where.leaf_id, limit=history.SNAPSHOT_MESSAGES)
        known = [at for at, message in enumerate(newer) if message.id == parent]
        raise errors.TurnInProgress(generation=history.generation(live), messages=newer[known[0] + 1 if known else 0 :])


def check_parent(where: Conversation, parent: uuid.UUID | None) -> None:
    """Raises ParentUnknown unless a message may follow `parent`: None, or an answer in there."""
    if parent in (None, where.leaf_id):
        return  # the newest message is always an answer
    answers = Message.objects.filter(pk=parent, conversation=where, role=Message.Role.ASSISTANT)
    if not answers.exists():
        raise errors.ParentUnknown
