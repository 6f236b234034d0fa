"""Who is let into the queue, and who is served next.

The order is the view `conversations_queue`: people take turns, and within a person the oldest is first. Claim, place
and estimate read it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.conf import settings
from django.db.models import Count, Q

from conversations import errors, places
from conversations.models import Generation, Person
from conversations.places import Place
from slots import causes, leases, statements

PAUSE_SECONDS = 1.0  # before the third attempt, if it is on the same server; the second is made at once
# For which somebody waits rather than that another who waits loses a slot. Longer, and whoever asks again at once would
# be served before everybody on a server of one slot.
SPARING_SECONDS = 1.0
FAITHFUL_SECONDS = 30.0  # for which a conversation without a model of its own waits for the one that answered it last
UNKNOWN_WAIT = 30  # seconds after which to try again while nothing can be estimated

# For which a claim waits for somebody's row: everybody's would wait with it, and it is made again soon.
PATIENCE = "2s"

_LOCK = """
SELECT set_config('idle_in_transaction_session_timeout', %(paused)s, true),
       set_config('lock_timeout', %(patience)s, true),
       pg_advisory_xact_lock(hashtextextended('conversations.queue', 0))"""

# A CTE: the only one who waits, and never began, if its person may have one more answer written. It says nothing while
# somebody else changes who is served, and sees what was so just before: of answers that are queued and begun by others
# in that instant a person may have one too many.
ALONE = """
head AS MATERIALIZED (
  SELECT g.id, g.conversation_id AS holder, g.model FROM conversations_generation g
  WHERE g.status = 'queued' AND g.started_at IS NULL AND g.stop_asked_at IS NULL
    AND NOT EXISTS (SELECT FROM conversations_generation other WHERE other.status = 'queued' AND other.id <> g.id)
    AND %(share)s > (SELECT count(*) FILTER (WHERE owner_id = g.owner_id) FROM conversations_generation
                     WHERE status = 'running')
    AND set_config('lock_timeout', %(patience)s, true) = %(patience)s
    AND pg_try_advisory_xact_lock(hashtextextended('conversations.queue', 0))
  FOR NO KEY UPDATE OF g SKIP LOCKED)"""

# The first of those who may begin, and all who keep a slot, wherever they are in the line. With several servers, who
# has no model of their own stays with the one that answered them last: while it is served, and for FAITHFUL_SECONDS
# of waiting though it is out of reach, as it may be back in a moment.
_HEADS = """
WITH known AS MATERIALIZED (
  SELECT model, bool_or(state = 'ready' AND id = ANY(%(servers)s)) AS here, count(*) AS servers FROM slots_server
  WHERE state <> 'retired' GROUP BY model),
line AS (
  SELECT q.id, q.conversation_id, q.model, q.began, q.position, q.began OR q.share <= %(share)s AS able,
         s.id IS NOT NULL AS keeps,
         date_part('epoch', statement_timestamp() - CASE WHEN q.began THEN coalesce((
           SELECT p.ended_at FROM slots_pastlease p WHERE p.holder = q.conversation_id ORDER BY p.fence DESC LIMIT 1),
           g.queued_at) ELSE g.queued_at END) AS waited,
         coalesce(last.tokens, 0) AS tokens, coalesce(nullif(q.model, ''), last.answered_by, '') AS wants
  FROM conversations_queue q JOIN conversations_generation g USING (id)
  LEFT JOIN slots_slot s ON s.holder = q.conversation_id AND (s.phase = 'idle' OR s.work <> 'turn')
  LEFT JOIN LATERAL (
    SELECT b.answered_by, ((b.usage->>'prompt_tokens')::float + (b.usage->>'completion_tokens')::float)::integer
    FROM conversations_generation b
    WHERE (SELECT sum(servers) > 1 FROM known)
      AND b.conversation_id = q.conversation_id AND b.id <> q.id AND b.started_at IS NOT NULL
    ORDER BY b.id DESC LIMIT 1) last (answered_by, tokens) ON true),
numbered AS (
  SELECT line.*, known.here, row_number() OVER (PARTITION BY able ORDER BY position) AS number
  FROM line LEFT JOIN known ON known.model = nullif(wants, '')
  WHERE CASE WHEN line.model <> '' THEN here ELSE here IS NOT false OR waited > %(faithful)s END)
SELECT id, conversation_id, CASE WHEN here THEN wants ELSE '' END, began, able, keeps, tokens, waited FROM numbered
WHERE keeps OR able AND number <= %(most)s ORDER BY position"""


def admit(person: int) -> None:
    """Let one more of `person` wait, until the end of the transaction, in which it is queued.

    The person's row is locked, so of any number of sends at once none passes their limit. That of everybody together
    is counted without a lock: it may be passed by as many as threads of the web processes send at one moment. Raises
    TooManyWaiting, QueueFull.
    """
    if not _locked(person):
        Person.objects.bulk_create([Person(pk=person)], ignore_conflicts=True)
        _locked(person)
    queued = Generation.objects.filter(status=Generation.Status.QUEUED)
    waiting = queued.aggregate(all=Count("pk"), own=Count("pk", filter=Q(owner=person)))
    if waiting["own"] >= settings.QUEUE_WAITING_PER_PERSON:
        raise _too_many_waiting(person, waiting["own"])
    if waiting["all"] >= settings.QUEUE_LENGTH:
        raise _full()


def lock() -> None:
    """To the end of the transaction nobody else changes who is served.

    Postgres ends it when we are paused within, or have to wait for anybody longer than PATIENCE (OperationalError).
    """
    statements.rows(_LOCK, {"paused": leases.PAUSED, "patience": PATIENCE})


@dataclass(frozen=True, slots=True)
class Head:
    """Somebody near the front of the queue: what is needed to begin."""

    generation: UUID
    conversation: UUID
    model: str  # that may answer; empty: any
    began: bool
    able: bool  # its person may have one more answer written
    keeps: bool  # it has a slot, which is idle or yields to it
    tokens: int  # model tokens of its conversation, as of its last turn
    waited: float  # seconds, since it was running last


def heads(servers: Sequence[int], most: int) -> list[Head]:
    """The first `most` that one of `servers` may serve now, in order, and whoever keeps a slot, `able` or not."""
    about = {
        "servers": list(servers), "share": settings.QUEUE_RUNNING_PER_PERSON, "most": most, "faithful": FAITHFUL_SECONDS
    }  # fmt: skip
    return [Head(*row) for row in statements.rows(_HEADS, about)]


def spared(head: Head, line: Sequence[Head]) -> tuple[list[UUID], list[UUID]]:
    """Whose slots are not taken for `head`, and whose only when there is nothing else, as they have turns queued.

    The first is nobody any more when it has waited for long: who goes on at once with every answer would keep it out.
    """
    able = [other.conversation for other in line if other.keeps and other.able and other is not head]
    unable = [other.conversation for other in line if other.keeps and not other.able]
    return (able, unable) if head.waited < SPARING_SECONDS else ([], able + unable)


def rested(head: Head, servers: Sequence[int]) -> list[int]:
    """Without those that failed it a moment ago: three attempts within an instant would find the same fault."""
    if not (head.began and Generation.objects.filter(pk=head.generation, attempt__gt=1).exists()):
        return list(servers)
    failed = causes.failed_lately(head.conversation, PAUSE_SECONDS)
    return [server for server in servers if server not in failed]


def somebody_waits() -> bool:
    return Generation.objects.filter(status=Generation.Status.QUEUED).exists()


def _locked(person: int) -> bool:
    rows = Person.objects.select_for_update(of=("self",), no_key=True)
    return rows.filter(pk=person).first() is not None


def _too_many_waiting(person: int, count: int) -> errors.TooManyWaiting:
    own = [place for place in places.board.look().values() if place.owner == person]
    return errors.TooManyWaiting(
        f"You have {count} {'message' if count == 1 else 'messages'} waiting for an answer, as many as one person may "
        "have: try again when one of them has begun.",
        retry_after=_seconds_until_one_begins(own),
    )


def _full() -> errors.QueueFull:
    return errors.QueueFull(
        "Too many messages wait for their answers at the moment: try again a little later.",
        retry_after=_seconds_until_one_begins(list(places.board.look().values())),
    )


def _seconds_until_one_begins(those: Sequence[Place]) -> int:
    known = [place.estimate.middle for place in those if place.estimate]
    return max(1, math.ceil(min(known))) if known else UNKNOWN_WAIT
