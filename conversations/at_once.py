"""A message and its queued answer in two statements and one round trip: the way that nearly every send takes.

Each query costs the web process more than it costs Postgres, and all of them are in front of somebody's first token.
Where anything speaks against a send nothing is done here, and `sending.send` finds out what it is.
"""

import json
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError

from chatbackend.accounts import sessions
from chatbackend.accounts.sessions import Seen
from conversations import fitting, titles
from conversations.models import Conversation, Generation, Message, new_id
from conversations.wishes import Wish
from slots import statements

# The conversation first, then its person, as everywhere: two turns of one conversation come one after the other, and
# of any number of sends of one person at once none passes their limit.
_LOCK = """
WITH place AS (
  SELECT owner_id FROM conversations_conversation
  WHERE id = %(conversation)s AND owner_id = %(owner)s AND deleted_at IS NULL FOR NO KEY UPDATE)
SELECT user_id FROM conversations_person WHERE user_id = (SELECT owner_id FROM place) FOR NO KEY UPDATE"""

# Sees what was committed when the locks were had. Who has no row in conversations_person locked none.
_SEND = f"""
WITH place AS (
  SELECT model, params, system_prompt, leaf_id, CASE WHEN %(to_leaf)s THEN leaf_id ELSE %(parent)s::uuid END AS after,
         title = '' AND leaf_id IS NULL AS nameless
  FROM conversations_conversation
  WHERE id = %(conversation)s AND owner_id = %(owner)s AND deleted_at IS NULL
    AND EXISTS (SELECT FROM conversations_person WHERE user_id = %(owner)s)),
waiting AS (
  SELECT count(*) AS everybody, count(*) FILTER (WHERE owner_id = %(owner)s) AS own
  FROM conversations_generation WHERE status = 'queued'),
question AS (
  INSERT INTO conversations_message (id, conversation_id, parent_id, role, text, reasoning)
  SELECT %(question)s, %(conversation)s, after, 'user', %(words)s, '' FROM waiting CROSS JOIN place
  WHERE own < %(most_own)s AND everybody < %(most)s
    AND (after IS NOT DISTINCT FROM leaf_id OR %(branch)s AND after IS NULL)
    AND NOT EXISTS (SELECT FROM conversations_generation WHERE owner_id = %(owner)s AND client_id = %(client_id)s)
    AND NOT EXISTS (SELECT FROM conversations_generation
                    WHERE conversation_id = %(conversation)s AND status IN ('queued', 'running'))
    AND (NOT %(surely)s OR {fitting.SURELY}) AND (NOT %(check_session)s OR {sessions.AS_SEEN})
  RETURNING id, created_at),
answer AS (
  INSERT INTO conversations_message (id, conversation_id, parent_id, role, text, reasoning)
  SELECT %(answer)s, %(conversation)s, id, 'assistant', '', '' FROM question RETURNING id),
generation AS (
  INSERT INTO conversations_generation
    (id, conversation_id, message_id, owner_id, client_id, request_digest, kind, model, finish_reason,
     params, system_prompt)
  SELECT %(generation)s, %(conversation)s, answer.id, %(owner)s, %(client_id)s, %(digest)s::bytea, %(kind)s, model,
         '', params, system_prompt
  FROM answer CROSS JOIN place RETURNING message_id),
shown AS (
  UPDATE conversations_conversation shown
  SET leaf_id = message_id, updated_at = statement_timestamp(), archived = false,
      title = CASE WHEN nameless THEN %(title)s ELSE title END, title_due = title_due OR nameless AND %(titles)s
  FROM generation CROSS JOIN place WHERE id = %(conversation)s
  RETURNING title, shown.model, shown.system_prompt, shown.params, pinned, shown.created_at, updated_at)
SELECT pg_notify(%(channel)s, %(news)s), everybody, after, after IS NOT DISTINCT FROM leaf_id,
       question.created_at, shown.*
FROM question CROSS JOIN waiting CROSS JOIN place CROSS JOIN shown"""


_NO_SESSION = dict.fromkeys(("session", "session_data", "session_of", "password", "sessions_ended"))


@dataclass(frozen=True, slots=True)
class Begun:
    """A turn as it was committed."""

    question: Message
    generation: Generation
    conversation: Conversation
    alone: bool  # nobody else waited, and no other version of the question is there: nothing more is to be read


def send(
    wish: Wish, words: str, parent: UUID | None, *, to_leaf: bool, branch: bool, notify: tuple[str, str],
    surely: bool = False, seen: Seen | None = None,
) -> Begun | None:  # fmt: skip
    """The new question and its queued generation; None, nothing stored, where it cannot be.

    Workers are told by `notify`, channel and payload. A `parent` that is neither the newest answer nor None is not
    looked at here. `surely`: only what the model can read for certain. `seen`: only while that session is as it was.
    """
    about = {
        "owner": wish.owner, "conversation": wish.conversation, "client_id": wish.client_id, "digest": wish.digest,
        "kind": wish.kind.value, "channel": notify[0], "news": notify[1], "words": words, "to_leaf": to_leaf,
        "parent": parent, "branch": branch, "most_own": settings.QUEUE_WAITING_PER_PERSON,
        "most": settings.QUEUE_LENGTH, "title": titles.title_of(words), "titles": settings.TITLES, "surely": surely,
        "at_most": fitting.at_most(words),
        "check_session": seen is not None, **(seen.about if seen else _NO_SESSION),
        **{name: new_id() for name in ("question", "answer", "generation")},
    }  # fmt: skip
    try:
        _, sent = statements.batch((_LOCK, about), (_SEND, about))
    except IntegrityError:
        return None  # the same client_id at this moment in another conversation
    return _begun(about, sent[0]) if sent else None


def _begun(about: dict[str, Any], row: tuple[Any, ...]) -> Begun:
    _, others, after, first, at, title, model, system_prompt, params, pinned, created_at, updated_at = row
    where = Conversation(
        id=about["conversation"], owner_id=about["owner"], title=title, model=model, leaf_id=about["answer"],
        system_prompt=system_prompt, params=json.loads(params), pinned=pinned, archived=False, created_at=created_at,
        updated_at=updated_at,
    )  # fmt: skip
    question = Message(
        id=about["question"], conversation=where, parent_id=after, role=Message.Role.USER, text=about["words"],
        created_at=at,
    )  # fmt: skip
    answer = Message(
        id=about["answer"], conversation=where, parent=question, role=Message.Role.ASSISTANT, created_at=at
    )
    generation = Generation(
        id=about["generation"], conversation=where, message=answer, owner_id=about["owner"], model=where.model,
        kind=about["kind"], params=where.params, system_prompt=system_prompt, queued_at=at,
    )  # fmt: skip
    return Begun(question, generation, where, alone=others == 0 and first)
