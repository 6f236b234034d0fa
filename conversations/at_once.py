"""A message and its queued answer in two statements: the way that nearly every send takes.

Each query costs the web process more than it costs Postgres, and all of them are in front of somebody's first token.
Where anything speaks against a send nothing is done here, and `sending.send` finds out what it is.
"""

import json
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction

from conversations import fitting, titles
from conversations.models import Conversation, Generation, Message, new_id
from conversations.wishes import Wish
from slots import statements

# The conversation first, then its person, as everywhere: two turns of one conversation come one after the other, and
# of any number of sends of one person at once none passes their limit.
_LOCK = """
WITH place AS (
  SELECT owner_id, leaf_id, model, title = '' AND leaf_id IS NULL AS nameless, system_prompt
  FROM conversations_conversation
  WHERE id = %(conversation)s AND owner_id = %(owner)s AND deleted_at IS NULL FOR NO KEY UPDATE),
person AS (
  SELECT user_id FROM conversations_person WHERE user_id = (SELECT owner_id FROM place) FOR NO KEY UPDATE)
SELECT leaf_id, model, nameless, system_prompt FROM place CROSS JOIN person"""

_SEND = """
WITH waiting AS (
  SELECT count(*) AS everybody, count(*) FILTER (WHERE owner_id = %(owner)s) AS own
  FROM conversations_generation WHERE status = 'queued'),
question AS (
  INSERT INTO conversations_message (id, conversation_id, parent_id, role, text, reasoning)
  SELECT %(question)s, %(conversation)s, %(parent)s::uuid, 'user', %(words)s, '' FROM waiting
  WHERE own < %(most_own)s AND everybody < %(most)s
    AND NOT EXISTS (SELECT FROM conversations_generation WHERE owner_id = %(owner)s AND client_id = %(client_id)s)
    AND NOT EXISTS (SELECT FROM conversations_generation
                    WHERE conversation_id = %(conversation)s AND status IN ('queued', 'running'))
  RETURNING id, created_at),
answer AS (
  INSERT INTO conversations_message (id, conversation_id, parent_id, role, text, reasoning)
  SELECT %(answer)s, %(conversation)s, id, 'assistant', '', '' FROM question RETURNING id),
generation AS (
  INSERT INTO conversations_generation
    (id, conversation_id, message_id, owner_id, client_id, request_digest, kind, model, finish_reason,
     params, system_prompt)
  SELECT %(generation)s, %(conversation)s, answer.id, %(owner)s, %(client_id)s, %(digest)s::bytea, %(kind)s, %(model)s,
         '', place.params, place.system_prompt
  FROM answer CROSS JOIN conversations_conversation place WHERE place.id = %(conversation)s RETURNING message_id),
shown AS (
  UPDATE conversations_conversation
  SET leaf_id = message_id, updated_at = statement_timestamp(), archived = false, title = coalesce(%(title)s, title),
      title_due = title_due OR %(due)s
  FROM generation WHERE id = %(conversation)s
  RETURNING title, system_prompt, params, pinned, conversations_conversation.created_at, updated_at)
SELECT pg_notify(%(channel)s, ''), everybody, question.created_at,
       title, system_prompt, params, pinned, shown.created_at, updated_at
FROM question CROSS JOIN waiting CROSS JOIN shown"""


@dataclass(frozen=True, slots=True)
class Begun:
    """A turn as it was committed."""

    question: Message
    generation: Generation
    conversation: Conversation
    alone: bool  # nobody else waited, and no other version of the question is there: nothing more is to be read


class Unsure(Exception):
    """It may be too long for the model: nothing is stored before its tokens are counted."""


def send(
    wish: Wish, words: str, parent: UUID | None, *, to_leaf: bool, branch: bool, channel: str, surely: bool = False
) -> Begun | None:
    """The new question and its queued generation, workers told on `channel`; None, nothing stored, where it cannot be.

    A `parent` that is neither the newest answer nor None is not looked at here. `surely`: only what the model can read
    for certain; raises Unsure.
    """
    about: dict[str, Any] = {"owner": wish.owner, "conversation": wish.conversation}
    try:
        with transaction.atomic():
            if (place := statements.row(_LOCK, about)) is None:
                return None
            leaf, model, nameless, system_prompt = place
            if surely and not fitting.surely(model, system_prompt, words):
                raise Unsure
            after = leaf if to_leaf else parent
            if after != leaf and not (branch and after is None):
                return None
            title = titles.title_of(words) if nameless else None
            about |= {name: new_id() for name in ("question", "answer", "generation")} | _said(wish, words)
            about |= {"parent": after, "model": model, "title": title, "channel": channel}
            about["due"] = nameless and settings.TITLES
            row = statements.row(_SEND, about)
            return _begun(about, row, first=after == leaf) if row else None
    except IntegrityError:
        return None  # the same client_id at this moment in another conversation


def _begun(about: dict[str, Any], row: tuple[Any, ...], *, first: bool) -> Begun:
    _, others, at, title, system_prompt, params, pinned, created_at, updated_at = row
    where = Conversation(
        id=about["conversation"], owner_id=about["owner"], title=title, model=about["model"], leaf_id=about["answer"],
        system_prompt=system_prompt, params=json.loads(params), pinned=pinned, archived=False, created_at=created_at,
        updated_at=updated_at,
    )  # fmt: skip
    question = Message(
        id=about["question"], conversation=where, parent_id=about["parent"], role=Message.Role.USER,
        text=about["words"], created_at=at,
    )  # fmt: skip
    answer = Message(
        id=about["answer"], conversation=where, parent=question, role=Message.Role.ASSISTANT, created_at=at
    )
    generation = Generation(
        id=about["generation"], conversation=where, message=answer, owner_id=about["owner"], model=where.model,
        kind=about["kind"], params=where.params, system_prompt=system_prompt, queued_at=at,
    )  # fmt: skip
    return Begun(question, generation, where, alone=others == 0 and first)


def _said(wish: Wish, words: str) -> dict[str, Any]:
    return {
        "words": words, "client_id": wish.client_id, "digest": wish.digest, "kind": wish.kind.value,
        "most_own": settings.QUEUE_WAITING_PER_PERSON, "most": settings.QUEUE_LENGTH,
    }  # fmt: skip
