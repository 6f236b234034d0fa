"""The tree of a conversation's messages: which path through it is shown, and where a new message may go."""

import uuid

from django.db import connection, transaction

from conversations import access, errors, history
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
        raise errors.TurnInProgress(generation=history.generation(live), messages=_newer(where, parent))


def question_of(owner: int, message: uuid.UUID) -> Message:
    """What the person's answer `message` answers. Raises NotFound, NotAnAnswer."""
    found = access.message(owner, message)
    if found.role != Message.Role.ASSISTANT or found.parent is None:
        raise errors.NotAnAnswer
    return found.parent


def answer_to_go_on_with(where: Conversation, stopped: uuid.UUID) -> Message:
    """What generation `stopped` left unfinished, at the end of what is shown. Raises NotFound, CannotContinue."""
    of_message = Generation.objects.filter(message__generations=stopped, conversation=where)
    newest = of_message.select_related("message__parent").order_by("-pk").first()
    if newest is None:
        raise errors.NotFound
    if newest.pk != stopped:
        raise errors.CannotContinue("This answer was gone on with already.", messages=_newer(where, newest.message_id))
    if newest.status == Generation.Status.DONE and newest.finish_reason != "length":
        raise errors.CannotContinue("This answer is complete: there is nothing to go on with.")
    answer = newest.message
    if answer.role != Message.Role.ASSISTANT or answer.parent is None:  # as an imported one may be
        raise errors.CannotContinue("Only an answer to a message can be continued.")
    if not (answer.text or answer.reasoning):
        raise errors.CannotContinue("Nothing was written of this answer: ask for another one instead.")
    if answer.pk != where.leaf_id:
        raise errors.CannotContinue(
            "The conversation goes on from another message: only its last answer can be continued.",
            messages=_newer(where, answer.pk),
        )
    return answer


def check_parent(where: Conversation, parent: uuid.UUID | None, branch: bool) -> None:
    """Raises ParentUnknown unless a message may follow `parent`: None, or an answer in there.

    Without `branch` also ParentStale, with the messages newer than `parent`, unless that is the end of what is shown.
    """
    if parent == where.leaf_id:
        return  # the newest message is always an answer
    if parent:
        answers = Message.objects.filter(pk=parent, conversation=where, role=Message.Role.ASSISTANT)
        if not answers.exists():
            raise errors.ParentUnknown
    if not branch:
        raise errors.ParentStale(messages=_newer(where, parent))


def _newer(where: Conversation, known: uuid.UUID | None) -> list[history.MessageView]:
    """What is shown after message `known`; all of it where that is not among it."""
    shown = history.path(where.pk, where.leaf_id, limit=history.SNAPSHOT_MESSAGES)
    at = next((at for at, message in enumerate(shown) if message.id == known), -1)
    return shown[at + 1 :]
