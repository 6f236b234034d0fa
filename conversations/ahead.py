"""Somebody opened a conversation, or types in it: workers are told, so that its slot may be warm when they send.

A hint: it may be lost, and whether anything is read ahead is for a worker to say (`conversations.worker.gaps`).
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import connection, transaction

from conversations import history, placeholders
from conversations.models import Conversation, Generation
from slots import leases, statements
from slots.grants import Grant
from slots.models import Slot

CHANNEL = "chatbackend_prewarm"  # NOTIFY: "person conversation"
TAB_SECONDS = 3.0  # between two hints of one tab about the same conversation
BURST, PER_SECOND = 6, 0.5  # of one person, from this process
MOST_PEOPLE = 2_000  # whose hints are counted


# Of a slot `s` of the conversation `c`: it is at work, or holds all there is to be read ahead of a question.
_NOTHING_DUE = """(s.phase = 'busy' OR s.kv_of = c.id AND (
    s.kv_outline IS NULL OR s.kv_outline->>'opened' = coalesce(c.leaf_id::text, '')))"""

# Nobody is evicted and nobody waits for it: where nothing is to be gained, or somebody else needs the machine, nothing
# is read. Where there is nothing to read yet no slot is taken either: a free one may hold what its last holder comes
# back to. A file of its own is restored beside a turn, too: that takes milliseconds.
_WHERE = f"""
SELECT wants.model, ARRAY(
  SELECT v.id FROM slots_server v
  WHERE v.id = ANY(%(servers)s) AND v.state = 'ready' AND v.grade <> 'one_at_a_time' AND wants.model IN ('', v.model)
    AND NOT EXISTS (SELECT FROM slots_slot b WHERE b.server_id = v.id AND b.phase = 'busy' AND b.work = 'prewarm')
    AND (NOT EXISTS (SELECT FROM slots_slot b WHERE b.server_id = v.id AND b.phase = 'busy' AND b.work = 'turn')
         OR v.parking = 'effective' AND EXISTS (
           SELECT FROM slots_park p WHERE p.server_id = v.id AND p.holder = c.id AND p.state = 'ready'
             AND p.fingerprint = v.fingerprint)
         AND NOT EXISTS (SELECT FROM slots_slot s WHERE s.holder = c.id AND s.kv_of = c.id)))
FROM conversations_conversation c CROSS JOIN LATERAL (
  SELECT coalesce(nullif(c.model, ''), (
    SELECT b.answered_by FROM conversations_generation b
    WHERE b.conversation_id = c.id AND b.started_at IS NOT NULL ORDER BY b.id DESC LIMIT 1), '')) wants (model)
WHERE c.id = %(conversation)s AND c.owner_id = %(person)s AND c.deleted_at IS NULL
  AND (c.leaf_id IS NOT NULL OR c.system_prompt <> '')
  AND NOT EXISTS (SELECT FROM slots_slot s WHERE s.holder = c.id AND {_NOTHING_DUE})
  AND NOT EXISTS (SELECT FROM conversations_generation g
                  WHERE g.status = 'queued' AND (g.model = '' OR c.model IN ('', g.model)))
  AND NOT EXISTS (SELECT FROM slots_slot s JOIN conversations_conversation o ON o.id = s.holder
                  WHERE s.phase = 'busy' AND s.work = 'prewarm' AND o.owner_id = c.owner_id)"""
_DONE = f"""
SELECT true FROM conversations_conversation c JOIN slots_slot s ON s.holder = c.id
WHERE c.id = %(conversation)s AND {_NOTHING_DUE}"""
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('conversations.ahead', 0))"

# Somebody else's turn on the same server or in its queue, or nobody's conversation any more: that of a preset's prompt,
# whose holder is a UUID of version 5, never was one.
_UNWELCOME = """
SELECT s.fence FROM slots_slot s JOIN slots_server v ON v.id = s.server_id
WHERE s.fence = ANY(%(fences)s) AND (
  EXISTS (SELECT FROM slots_slot b WHERE b.server_id = v.id AND b.phase = 'busy' AND b.work = 'turn')
  OR EXISTS (SELECT FROM conversations_generation g WHERE g.status = 'queued' AND g.model IN ('', v.model))
  OR substr(s.holder::text, 15, 1) <> '5'
    AND NOT EXISTS (SELECT FROM conversations_conversation c WHERE c.id = s.holder AND c.deleted_at IS NULL))"""


class Throttle:
    """Who may give a hint now. `clock` is monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._people: OrderedDict[int, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def takes(self, person: int) -> bool:
        now = self._clock()
        with self._lock:
            left, at = self._people.pop(person, (float(BURST), now))
            left = min(float(BURST), left + (now - at) * PER_SECOND)
            taken = left >= 1
            self._people[person] = (left - taken, now)
            while len(self._people) > MOST_PEOPLE:
                self._people.popitem(last=False)
        return taken


class Tab:
    """What one tab hinted at last: a conversation that it is in."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: tuple[UUID | None, float] = (None, 0.0)

    def news(self, conversation: UUID) -> bool:
        now = self._clock()
        which, at = self._last
        if which == conversation and now < at + TAB_SECONDS:
            return False
        self._last = conversation, now
        return True

    def sent(self) -> None:
        """What is typed next is for another message."""
        self._last = None, 0.0


throttle = Throttle()


def hint(person: int, conversation: UUID) -> None:
    """Tell the workers, unless this person said a lot lately."""
    if throttle.takes(person):
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, f"{person} {conversation}"])


def heard(payload: str) -> tuple[int, UUID] | None:
    """What `hint` said, person and conversation; None for what another version of it may say."""
    try:
        person, conversation = payload.split()
        return int(person), UUID(conversation)
    except ValueError:
        return None


def acquire(worker: UUID, servers: Sequence[int], person: int, conversation: UUID) -> Grant | None:
    """A slot of `servers` on which it is welcome to be read ahead now; at most one of a person and one of a server."""
    with transaction.atomic():
        leases.end_if_paused()
        statements.rows(_LOCK, {})
        about = {"servers": list(servers), "person": person, "conversation": conversation}
        row = statements.row(_WHERE, about)
        if row is None or not row[1]:
            return None
        return leases.acquire(conversation, worker, row[1], row[0], work=Slot.Work.PREWARM)


def nothing_due(conversation: UUID) -> bool:
    """Whether its slot holds all that can be read ahead, or it is being answered or read there."""
    return statements.row(_DONE, {"conversation": conversation}) is not None


def unwelcome(fences: Sequence[int]) -> set[int]:
    """Those of the leases of work beside turns that are in somebody's way now."""
    return {fence for (fence,) in statements.rows(_UNWELCOME, {"fences": list(fences)})}


@dataclass(frozen=True, slots=True)
class Coming:
    """With what the next turn of a conversation begins, whatever is said then.

    `messages` end with the newest answer, before there is one with the system prompt; `behind`: which message is shown
    last, empty where there is none; `asked_tokens`: of the prompt that the answer was to, where it was counted.
    """

    params: dict[str, Any]
    messages: list[dict[str, str]]
    behind: str = ""
    asked_tokens: int | None = None


def coming(conversation: UUID) -> Coming | None:
    """None where nothing is known of it yet."""
    where = Conversation.objects.filter(pk=conversation, deleted_at=None).first()
    if where is None:
        return None
    system_prompt = placeholders.expanded(where.system_prompt, where.created_at)
    if where.leaf_id is None:
        return Coming(where.params, [{"role": "system", "content": system_prompt}]) if system_prompt else None
    messages = history.prompt(where.pk, where.leaf_id, system_prompt)
    answered = bool(messages) and _stays(messages[-1])
    # A question without an answer is joined with what is said next, and an answer without a text left out.
    while messages and messages[-1]["role"] != "system" and not _stays(messages[-1]):
        messages.pop()
    tokens = _asked_tokens(where) if answered else None
    return Coming(where.params, messages, str(where.leaf_id), tokens) if messages else None


def _stays(message: dict[str, str]) -> bool:
    return message["role"] == "assistant" and bool(message["content"])


def _asked_tokens(where: Conversation) -> int | None:
    """Asked under the same system prompt. What was queued again was counted with a part of the answer."""
    kinds = (Generation.Kind.SEND, Generation.Kind.REGENERATE)
    of_answer = Generation.objects.filter(message=where.leaf_id, kind__in=kinds, imported=False)
    counted = of_answer.filter(system_prompt=where.system_prompt).values_list("usage__prompt_tokens", flat=True)
    return min(filter(None, counted), default=None)
