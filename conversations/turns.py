"""The only mover of generations: one function per move, each a compare-and-set on the state it moves from.

    -> queued                    send, regenerate, continue_answer of `sending`, which begins them and moves none   web
    -> done | cancelled | failed | interrupted   keep_ended         web, of imported ones
    queued -> running            claim              the dispatcher
    queued -> cancelled          cancel             web
    running -> running           take_overs         any dispatcher, when the lease expired
    running -> queued            requeue, rescue    its fence; any dispatcher when no busy slot carries that fence
    running -> queued            leave_server       whoever finds isolation broken there, for all that run there
    running -> done | cancelled | failed | interrupted   finish, rescue   its fence

Web never moves a running generation: it commits the wish to stop, which whoever runs it must obey.
Lock order: slot rows, generation, message, chunks.
"""

import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Case, Exists, F, OuterRef, Q, QuerySet, Subquery, When
from django.db.models.functions import Coalesce, Now

from conversations import claims, errors, estimate, folding, queue, unfinished, unmeasured
from conversations.claims import Claim
from conversations.models import Chunk, Generation
from conversations.places import Place
from conversations.queue import Head
from slots import isolation, leases
from slots.grants import Grant, LeaseLost
from slots.isolation import IsolationBroken
from slots.models import PastLease, Slot

ATTEMPTS = 3  # requests to a server before a generation counts as interrupted
HEADS = 20  # how many of the waiting are tried at once: a head that cannot be placed holds nobody up
WORK_CHANNEL = "chatbackend_work"  # NOTIFY: something was queued, stopped or released; a hint, polling is the truth
QUEUED = "queued"  # its payload where it is surely that

_NOTE = """
WITH untold AS (
  SELECT g.id, told.low, told.high FROM conversations_generation g
  JOIN unnest(%(generations)s::uuid[], %(low)s::integer[], %(high)s::integer[]) AS told (id, low, high) USING (id)
  WHERE g.status = 'queued' AND g.estimated_at IS NULL FOR NO KEY UPDATE OF g SKIP LOCKED)
UPDATE conversations_generation g SET estimated_at = statement_timestamp(), estimate_low = low, estimate_high = high
FROM untold WHERE g.id = untold.id"""

# Whose person the others have their turns before, from now on.
_BEGIN = """
begun AS (
  UPDATE conversations_generation SET status = 'running', fence = {fence}, attempt = attempt + 1,
                                      answered_by = (SELECT model FROM slots_server WHERE id = {server}),
                                      started_at = coalesce(started_at, statement_timestamp())
  WHERE id = {generation} AND status = 'queued' AND stop_asked_at IS NULL RETURNING *),
served AS (
  INSERT INTO conversations_person (user_id, served_at) SELECT owner_id, statement_timestamp() FROM begun
  ON CONFLICT (user_id) DO UPDATE SET served_at = excluded.served_at)"""
_BEGIN_GRANTED = _BEGIN.format(fence="%(fence)s", server="%(server)s", generation="%(generation)s")
_BEGIN_LEASED = _BEGIN.format(
    fence="(SELECT fence FROM leased)", server="(SELECT server FROM leased)",
    generation="(SELECT head.id FROM head CROSS JOIN leased)",
)  # fmt: skip


class Gone(Exception):
    """The generation was deleted, with its conversation, while it ran: stop it and give the slot back."""


class AttemptsSpent(Exception):
    """It may not be asked for once more."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a generation ended, as it is stored."""

    status: Generation.Status
    finish_reason: str = ""
    error: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    timings: dict[str, Any] | None = None


def cancel(owner: int, generation: uuid.UUID) -> Generation:
    """Stop: at once while it waits, else as a committed wish. Stopping what has ended changes nothing.

    Raises NotFound.
    """
    with transaction.atomic():
        leases.end_if_paused()
        locked = Generation.objects.select_for_update(of=("self",), no_key=True)
        found = locked.filter(pk=generation, owner=owner, conversation__deleted_at=None).first()
        if found is None:
            raise errors.NotFound
        _stop(found)
    found.refresh_from_db()
    return found


def keep_ended(elsewhere: Sequence[Generation]) -> None:
    """Store generations that ended on another site, with messages that are imported from there."""
    Generation.objects.bulk_create(elsewhere)


def stop_all(conversation: uuid.UUID) -> None:
    """Stop, as `cancel` does, whatever lives in a conversation. Call in the transaction that hides it."""
    live = Generation.objects.filter(conversation=conversation, status__in=Generation.LIVE)
    for found in live.select_for_update(of=("self",), no_key=True):
        _stop(found)


def claim(worker: uuid.UUID, servers: Sequence[int]) -> Claim | None:
    """Start the first waiting generation that a slot of `servers` can be had for; None when there is none.

    Mostly there is but one, and it goes on in its own slot: that is had in one statement.
    """
    share = settings.QUEUE_RUNNING_PER_PERSON
    alone = claims.begin_alone(worker, servers, queue.ALONE, _BEGIN_LEASED, share=share, patience=queue.PATIENCE)
    return alone or _first_in_line(worker, servers)


def _first_in_line(worker: uuid.UUID, servers: Sequence[int]) -> Claim | None:
    stopped: set[uuid.UUID] = set()
    while True:
        try:
            with transaction.atomic():
                queue.lock()
                heads = [head for head in queue.heads(servers, HEADS) if head.generation not in stopped]
                return _first_of(heads, worker, servers)
        except _Stopped as gone:  # all of it is rolled back, so the slot is what it was
            stopped.add(gone.generation)


def take_overs(worker: uuid.UUID, servers: Sequence[int]) -> list[Claim]:
    """Take every running generation whose lease expired, to go on with it.

    A lease whose generation had ended already, its worker dead before it gave the slot back, ends at once.
    """
    taken = []
    with transaction.atomic():
        queue.lock()
        expired = Slot.objects.filter(phase=Slot.Phase.BUSY, expires_at__lt=Now(), server__in=servers)
        fences = list(expired.values_list("fence", flat=True))
        running_on = list(Generation.objects.filter(status=Generation.Status.RUNNING, fence__in=fences))
        if over := set(fences) - {running.fence for running in running_on}:
            leases.reap_at_once(sorted(over))
        for running in running_on:
            old = running.fence
            grant = leases.take_over(old, running.conversation_id, worker, servers) if old else None
            if grant and _cas(running.pk, old).update(fence=grant.fence):
                taken.append(claims.read(grant, running.pk))
    return taken


def rescue() -> list[tuple[uuid.UUID, uuid.UUID]]:
    """Put back what runs nowhere any more: to the front of the queue, or `interrupted` after ATTEMPTS.

    Returns the interrupted ones as (conversation, generation).
    """
    interrupted = []
    with transaction.atomic():
        queue.lock()
        busy = Slot.objects.filter(fence=OuterRef("fence"), phase=Slot.Phase.BUSY)
        for lost in Generation.objects.filter(~Exists(busy), status=Generation.Status.RUNNING):
            if lost.attempt < ATTEMPTS or lost.stop_asked_at:
                _back_to_queue(lost.pk, lost.fence)
                continue
            if _end(lost.pk, lost.fence, Ending(Generation.Status.INTERRUPTED, error=_gone(lost.pk))):
                interrupted.append((lost.conversation_id, lost.pk))
    return interrupted


def requeue(held: Claim, refund: bool) -> None:
    """Give slot and turn back: the server failed it. `refund`: nothing was sent, so the attempt does not count.

    Raises LeaseLost.
    """
    with leases.fenced(held.grant):
        leases.revoke(held.grant.slot, held.grant.fence)
        _back_to_queue(held.generation, held.grant.fence, refund)
        wake()


def leave_server(held: Grant, broken: IsolationBroken) -> None:
    """Take the server of `held` out of service, and put all that runs there back to the front of the queue.

    It counts as no attempt of theirs. Raises LeaseLost, changing nothing, when another fence is on its slot.
    """
    with transaction.atomic():
        leases.end_if_paused()
        ended = isolation.take_out_of_service(held.server, broken)
        if held.fence not in ended:
            raise LeaseLost(f"slot={held.slot} fence={held.fence}")
        for running in Generation.objects.filter(status=Generation.Status.RUNNING, fence__in=ended):
            _back_to_queue(running.pk, running.fence, refund=True)
        wake()


def another_attempt(held: Claim) -> Claim:
    """Count and announce another request under the same lease, from what is stored by now.

    Raises LeaseLost, Gone; AttemptsSpent after ATTEMPTS.
    """
    with leases.fenced(held.grant):
        mine = _cas(held.generation, held.grant.fence)
        if not mine.filter(attempt__lt=ATTEMPTS).update(attempt=F("attempt") + 1):
            raise (AttemptsSpent if mine.exists() else Gone)(f"generation={held.generation} fence={held.grant.fence}")
        return claims.read(leases.announce(held.grant), held.generation)


def finish(held: Claim, ending: Ending) -> int:
    """End it: fold its chunks into the message; its final `seq`. The lease stays until the slot is quiet.

    What estimates are made from is noted beside its timings. Raises LeaseLost; Gone when the conversation was deleted
    meanwhile.
    """
    with leases.fenced(held.grant):
        if ending.timings is not None:
            noted = estimate.measured(held.generation, held.grant.server, ending.timings)
            ending = replace(ending, timings=noted)
        if not _end(held.generation, held.grant.fence, ending):
            raise Gone(f"generation={held.generation} fence={held.grant.fence}")
        return Generation.objects.values_list("seq", flat=True).get(pk=held.generation)


def note_estimates(told: Sequence[Place]) -> None:
    """Keep what was told first of how long each waits; one that is just being claimed is left out."""
    known = [(place.generation, *place.estimate) for place in told if place.untold and place.estimate]
    if known:
        generations, low, high = zip(*known, strict=True)
        with connection.cursor() as cursor:
            cursor.execute(_NOTE, {"generations": list(generations), "low": list(low), "high": list(high)})


def wake() -> None:
    """Tell the workers, on commit, that there is something to do."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, '')", [WORK_CHANNEL])


def _stop(locked: Generation) -> None:
    if locked.status == Generation.Status.QUEUED:
        _end_queued(locked.pk, Ending(Generation.Status.CANCELLED))
    elif locked.status == Generation.Status.RUNNING:
        Generation.objects.filter(pk=locked.pk, stop_asked_at=None).update(stop_asked_at=Now())
    wake()


class _Stopped(Exception):
    """Its person ended it this moment."""

    def __init__(self, generation: uuid.UUID) -> None:
        super().__init__(f"generation={generation}")
        self.generation = generation


def _first_of(heads: list[Head], worker: uuid.UUID, servers: Sequence[int]) -> Claim | None:
    full: set[tuple[str, bool]] = set()
    for head in heads:
        spared, last = queue.spared(head, heads)
        alike = head.model, bool(spared)
        # Whoever keeps a slot goes on with it, though there is no other.
        if not head.able or (alike in full and not head.keeps):
            continue
        rested = queue.rested(head, servers)
        grant = _lease(head, worker, rested, spared, last) if rested else None
        if grant:
            return replace(_start(head, grant), others_wait=len(heads) > 1)
        # Its own slot may just not be quiet yet: that is no reason to let everybody else wait.
        if len(rested) == len(servers) and not leases.holds(head.conversation):
            full.add(alike)
    return None


def _lease(
    head: Head, worker: uuid.UUID, servers: Sequence[int], spared: Sequence[uuid.UUID], last: Sequence[uuid.UUID]
) -> Grant | None:
    where, model, keeps, tokens = head.conversation, head.model, head.keeps, head.tokens
    return leases.acquire(where, worker, servers, model, keeps=keeps, tokens=tokens, spared=spared, last=last)


def _start(head: Head, grant: Grant) -> Claim:
    if claim := claims.begin(grant, head.generation, _BEGIN_GRANTED):
        return claim
    raise _Stopped(head.generation)


def _cas(generation: uuid.UUID, fence: int | None) -> QuerySet[Generation]:
    return Generation.objects.filter(pk=generation, status=Generation.Status.RUNNING, fence=fence)


def _back_to_queue(generation: uuid.UUID, fence: int | None, refund: bool = False) -> None:
    """Call when its lease is closed. What has been written of an answer for any model binds it to the one that did."""
    attempt = F("attempt") - 1 if refund else F("attempt")
    wrote = PastLease.objects.filter(fence=OuterRef("fence")).values("slot__server__model")
    bound = Case(When(Q(model="") & _written(), then=Coalesce(Subquery(wrote), F("model"))), default=F("model"))
    # In one statement: whoever asks it to stop meanwhile would else find it queued, where nobody obeys.
    going_on = _cas(generation, fence).filter(stop_asked_at=None)
    if not going_on.update(status=Generation.Status.QUEUED, fence=None, attempt=attempt, model=bound):
        _end(generation, fence, Ending(Generation.Status.CANCELLED))


def _end(generation: uuid.UUID, fence: int | None, ending: Ending) -> bool:
    return _ended(_cas(generation, fence), generation, ending)


def _end_queued(generation: uuid.UUID, ending: Ending) -> bool:
    return _ended(Generation.objects.filter(pk=generation, status=Generation.Status.QUEUED), generation, ending)


def _ended(where: QuerySet[Generation], generation: uuid.UUID, ending: Ending) -> bool:
    if ending.timings is None:
        usage, timings = unmeasured.figures(generation)
        ending = replace(ending, usage=usage, timings=timings)
    moved = where.update(fence=None, finished_at=Now(), seq=folding.last_seq(generation), **asdict(ending))
    if moved:
        folding.fold(generation)
        wake()
    return bool(moved)


def _gone(generation: uuid.UUID) -> dict[str, Any]:
    there = _written() | ~Q(message__text="") | ~Q(message__reasoning="")
    written = Generation.objects.filter(there, pk=generation).exists()
    return unfinished.problem(unfinished.INTERRUPTED, True, written)


def _written() -> Q:
    """Whether there are chunks of it."""
    return Q(Exists(Chunk.objects.filter(generation=OuterRef("pk"))))
