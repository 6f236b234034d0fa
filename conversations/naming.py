"""Which conversations are due a title that their model makes, and storing it unless a person was faster."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Exists, QuerySet

from conversations import history
from conversations.models import Conversation, Generation
from slots import statements

# In a gap: its own slot is idle and holds the answer, nothing else is at work on that server, and nobody waits who may
# be served there. Not on servers where a title costs more than it takes to write: those that answer one at a time, and
# those whose process was seen to lose a conversation over one.
_DUE = """
SELECT c.id, c.owner_id, v.id FROM conversations_conversation c
JOIN slots_slot s ON s.holder = c.id JOIN slots_server v ON v.id = s.server_id
WHERE c.title_due AND c.deleted_at IS NULL
  AND s.phase = 'idle' AND s.kv_of = c.id AND s.kv_tokens > 0 AND s.kv_outline->>'answer' IS NOT NULL
  AND v.id = ANY(%(servers)s) AND v.state = 'ready' AND v.grade <> 'one_at_a_time'
  AND NOT EXISTS (SELECT FROM conversations_forgetful f
                  WHERE f.server_id = v.id AND f.at > coalesce(v.boot_at, '-infinity'))
  AND NOT EXISTS (SELECT FROM slots_slot b WHERE b.server_id = v.id AND b.phase = 'busy')
  AND NOT EXISTS (SELECT FROM conversations_generation g WHERE g.status = 'queued' AND g.model IN ('', v.model))
ORDER BY s.used_at LIMIT 1"""

_FORGETFUL = """
INSERT INTO conversations_forgetful (server_id) VALUES (%(server)s)
ON CONFLICT (server_id) DO UPDATE SET at = statement_timestamp()"""


@dataclass(frozen=True, slots=True)
class Due:
    """A conversation whose title can be made now, on the slot that it holds on `server`."""

    conversation: UUID
    owner: int
    server: int


def due(servers: Sequence[int]) -> Due | None:
    """The one that waits longest of those that can have their titles on `servers` at this moment."""
    row = statements.row(_DUE, {"servers": list(servers)})
    return Due(*row) if row else None


def question(conversation: UUID) -> tuple[dict[str, Any], list[dict[str, str]]] | None:
    """The parameters of its newest answer, and its history with that answer, as a model was sent it.

    None where there is nothing to name any more, or no answer to name it by.
    """
    leaf = _due_one(conversation).values_list("leaf", flat=True).first()
    newest = Generation.objects.filter(message=leaf).order_by("-id").values_list("pk", flat=True).first()
    asked = history.asked(newest) if newest else None
    if leaf is None or asked is None:
        return None
    params, system_prompt = asked
    messages = history.prompt(conversation, leaf, system_prompt)
    return (params, messages) if messages and messages[-1]["role"] == "assistant" else None


def name(conversation: UUID, title: str) -> Conversation | None:
    """Its title from now on; None if a person has named or deleted it meanwhile."""
    if not _due_one(conversation).update(title_due=False, title=title):
        return None
    return Conversation.objects.filter(pk=conversation).first()


def give_up(conversation: UUID) -> None:
    """It keeps its first words; but where a turn has begun meanwhile nothing is decided: a gap comes after it."""
    begun = Generation.objects.filter(conversation=conversation, status__in=Generation.LIVE)
    _due_one(conversation).filter(~Exists(begun)).update(title_due=False)


def note_forgetful(server: int) -> None:
    """No more titles are made by the process that answers there now."""
    statements.rows(_FORGETFUL, {"server": server})


def _due_one(conversation: UUID) -> QuerySet[Conversation]:
    return Conversation.objects.filter(pk=conversation, title_due=True, deleted_at=None)
