"""Who is let into the queue, and who is served next.

The order is the view `conversations_queue`: people take turns, and within a person the oldest is first. Claim, place
and estimate read it.
"""

import math
from collections.abc import Sequence

from django.conf import settings
from django.db.models import Count, Q

from conversations import errors, places
from conversations.models import Generation, Person, Waiting
from conversations.places import Place
from slots import causes, leases, statements

PAUSE_SECONDS = 1.0  # before the third attempt, if it is on the same server; the second is made at once
UNKNOWN_WAIT = 30  # seconds after which to try again while nothing can be estimated

_LOCK = """
SELECT set_config('idle_in_transaction_session_timeout', %(paused)s, true),
       pg_advisory_xact_lock(hashtextextended('conversations.queue', 0))"""

_FIELDS = ["generation_id", "conversation_id", "owner_id", "model", "began"]
_HEADS = """
SELECT id, conversation_id, owner_id, model, began FROM conversations_queue
WHERE (model = '' OR model IN (SELECT model FROM slots_server WHERE id = ANY(%(servers)s) AND state = 'ready'))
  AND (began OR share <= %(share)s)
ORDER BY position LIMIT %(most)s"""


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
    """To the end of the transaction nobody else changes who is served; Postgres ends it when we are paused within."""
    statements.rows(_LOCK, {"paused": leases.PAUSED})


def heads(servers: Sequence[int], most: int) -> list[Waiting]:
    """The first `most` that one of `servers` may serve now, in order: what is needed of them to begin."""
    about = {"servers": list(servers), "share": settings.QUEUE_RUNNING_PER_PERSON, "most": most}
    return [Waiting.from_db(None, _FIELDS, row) for row in statements.rows(_HEADS, about)]


def rested(head: Waiting, servers: Sequence[int]) -> list[int]:
    """Without those that failed it a moment ago: three attempts within an instant would find the same fault."""
    if not (head.began and Generation.objects.filter(pk=head.pk, attempt__gt=1).exists()):
        return list(servers)
    failed = causes.failed_lately(head.conversation_id, PAUSE_SECONDS)
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
