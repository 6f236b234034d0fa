"""The only writer of leases: acquire, take over, renew, release, revoke, reap. Statements tried under contention.

Lock order everywhere: slot rows by id, then whatever the caller protects with them. All times are Postgres's.
Whoever holds an expired lease still holds it: only a changed fence ends it (`LeaseLost`).
"""

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Max
from django.db.models.functions import Now

from slots import lease_statements as sql
from slots import parked, statements

# What its functions give and raise is imported from here as well.
from slots.grants import Grant as Grant
from slots.grants import LeaseLost as LeaseLost
from slots.models import PastLease, Slot

PAUSED = "10s"
MOVE_SECONDS = 5.0  # for which a slot elsewhere must have been free before a conversation leaves its file for it

_ACQUIRE = {
    Slot.Work.TURN: (sql.ACQUIRE_OWN, sql.ACQUIRE_OTHER),
    Slot.Work.TITLE: (sql.BORROW_OWN,),
    Slot.Work.PREWARM: (sql.BORROW_OWN, sql.BORROW_FREE),
    Slot.Work.PARK: (sql.BORROW_OWN,),
}

_UNKNOWN: dict[str, None] = {"kv_of": None, "kv_tokens": None, "kv_task": None, "kv_outline": None}


def acquire(
    holder: uuid.UUID,
    worker: uuid.UUID,
    servers: Sequence[int],
    model: str = "",
    work: Slot.Work = Slot.Work.TURN,
    *,
    keeps: bool = True,
    tokens: int = 0,
    spared: Sequence[uuid.UUID] = (),
    last: Sequence[uuid.UUID] = (),
) -> Grant | None:
    """Lease a slot of one of `servers` to `holder`, its next request's stream id already on the row.

    A turn gets its own slot, idle or busy with other work than a turn. Else, in this order: a free slot where its cache
    still is, or on a server that has its file; any free slot, on the server where least is going on, unless it has a
    file elsewhere and the slot has been free for less than MOVE_SECONDS; the idle one that is cheapest to lose; a free
    one after all; anybody's that is busy with such other work (`Grant.preempted`). None when every slot is busy with a
    turn. `keeps` False: it surely has no slot, and need not be looked for. `tokens` is what the holder would have to
    read again; those of `spared` lose nothing to it, those of `last` only when there is nothing else.

    Other work never takes anything from anybody: a title and a park get their own idle slot, a prewarm its own idle one
    or a free one, as which one counts that expired between turns. It may lose its lease to a turn at any moment, and
    then drops everything without a word (`LeaseLost`, `Held.lost`): the turn stops its request. Nobody can stop one
    that is still to be sent, so it asks Postgres just before (`renew`, `Held.confirm`) and again once the server has
    begun, and stops its own if the lease is gone by then.

    `model` empty takes any. Raises IntegrityError (`slot_one_per_holder`) when the same holder acquires elsewhere at
    the same moment.
    """
    about = _wish(holder, worker, servers, work) | {
        "model": model, "tokens": float(tokens), "spared": list(spared), "last": list(last)
    }  # fmt: skip
    asked_at = time.monotonic()
    row = _first(_ACQUIRE[work] if keeps else _ACQUIRE[work][1:], about)
    if row is None and keeps and work == Slot.Work.TURN and statements.row(sql.LEAVE_OWN_SLOT, about):
        row = statements.row(sql.ACQUIRE_OTHER, about)
    return _granted(row, holder, asked_at, work) if row else None


def acquire_by(head: str, then: str, worker: uuid.UUID, servers: Sequence[int], **about: Any) -> tuple[Any, ...] | None:
    """Lease its own idle slot to whoever `head` finds, in one statement with what follows from that.

    `head` is the CTE `head` with `holder` and the `model` that may answer, of one row at most; `then` are the CTEs and
    the query behind it, which may read `leased`, of which it returns first the holder and every column. Returns the
    Grant and what else that returned; None, nothing changed, where there is no such slot, or somebody has its row.
    """
    wish = _about(None, worker, servers) | {"stream_id": uuid.uuid4()} | about
    asked_at = time.monotonic()
    row = statements.row(f"WITH {head}, {sql.LEASED_TO_HEAD}, {then}", wish)
    if row is None:
        return None
    holder, *rest = row
    leased, told = rest[: sql.LEASED_COLUMNS], rest[sql.LEASED_COLUMNS :]
    return _granted(tuple(leased), holder, asked_at, Slot.Work.TURN), *told


def acquire_to_wipe(worker: uuid.UUID, server: int, *, evicting: bool = False) -> Grant | None:
    """Lease a free slot of `server` to nobody, to write empty files from; `evicting`: an idle one if none is free."""
    holder, asked_at = uuid.uuid4(), time.monotonic()
    about = _wish(holder, worker, [server], Slot.Work.WIPE)
    row = statements.row(sql.BORROW_FREE_OR_IDLE if evicting else sql.BORROW_FREE, about)
    return _granted(row, holder, asked_at, Slot.Work.WIPE) if row else None


def _wish(holder: uuid.UUID, worker: uuid.UUID, servers: Sequence[int], work: Slot.Work) -> dict[str, Any]:
    """For a slot that nobody else's wishes are weighed against."""
    return _about(holder, worker, servers) | {
        "work": work.value, "stream_id": uuid.uuid4(), "move": MOVE_SECONDS, "idle_ttl": settings.LEASE_IDLE_TTL,
        "model": "", "tokens": 0.0, "spared": [], "last": [],
    }  # fmt: skip


def _first(texts: Sequence[str], about: dict[str, Any]) -> tuple[Any, ...] | None:
    return next((row for text in texts if (row := statements.row(text, about))), None)


def _granted(row: tuple[Any, ...], holder: uuid.UUID, asked_at: float, work: Slot.Work) -> Grant:
    slot, server, id_slot, fence, stream_id, preempted, in_ram, *held = row
    grant = Grant(
        slot, server, id_slot, fence, holder, stream_id, False, None, None, asked_at,
        parks_in_ram=in_ram, preempted=preempted, yields=work != Slot.Work.TURN,
    )  # fmt: skip
    return grant.with_cache(*held)


def holds(holder: uuid.UUID) -> bool:
    """Whether `holder` has a lease, be it one whose slot is not quiet yet."""
    return Slot.objects.filter(holder=holder).exists()


def take_over(fence: int, holder: uuid.UUID, worker: uuid.UUID, servers: Sequence[int]) -> Grant | None:
    """Take the expired lease `fence` under which a turn of `holder` runs.

    None while it is alive, gone, another work's, or its server out of reach.
    """
    asked_at = time.monotonic()
    row = statements.row(sql.TAKE_OVER, _about(holder, worker, servers) | {"fence": fence})
    if row is None:
        return None
    slot, server, id_slot, new_fence, stream_id, preempted, in_ram, kv_of, *_ = row
    warm = kv_of == holder
    grant = Grant(slot, server, id_slot, new_fence, holder, stream_id, warm, None, None, asked_at, taken_over=True)
    return replace(grant, parks_in_ram=in_ram, preempted=preempted)


@contextmanager
def fenced(grant: Grant) -> Iterator[None]:
    """A transaction that holds the slot row of `grant`; raises LeaseLost, changing nothing, if it has another fence."""
    with transaction.atomic():
        end_if_paused()
        mine = Slot.objects.select_for_update(of=("self",), no_key=True)
        if not mine.filter(pk=grant.slot, fence=grant.fence, phase=Slot.Phase.BUSY).exists():
            raise LeaseLost(f"slot={grant.slot} fence={grant.fence}")
        yield


def end_if_paused() -> None:
    """In a transaction that locks what others need: Postgres ends it when its process is paused within it.

    Everybody would wait for a SIGSTOP in these milliseconds, for as long as it lasts.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('idle_in_transaction_session_timeout', %s, true)", [PAUSED])


def announce(grant: Grant) -> Grant:
    """Commit a fresh stream id before another request under the same lease. Raises LeaseLost."""
    stream_id = uuid.uuid4()
    if (
        row := statements.row(sql.ANNOUNCE, {"slot": grant.slot, "fence": grant.fence, "stream_id": stream_id})
    ) is None:
        raise LeaseLost(f"slot={grant.slot} fence={grant.fence}")
    return replace(grant, stream_id=stream_id, warm=row[0], taken_over=False)


def renew(held: Iterable[Grant]) -> set[int]:
    """Give each of `held` a new time to live; the fences that are still theirs."""
    grants = list(held)
    about = {
        "slots": [grant.slot for grant in grants],
        "fences": [grant.fence for grant in grants],
        "ttl": settings.LEASE_TTL,
    }
    return {fence for (fence,) in statements.rows(sql.RENEW, about)}


def offer(held: Iterable[Grant]) -> None:
    """Let any other worker take these over at once: their worker is going away in good order."""
    for grant in held:
        Slot.objects.filter(pk=grant.slot, fence=grant.fence, phase=Slot.Phase.BUSY).update(expires_at=Now())


def filled(grant: Grant, kv_tokens: int | None = None, kv_outline: Any = None) -> Grant:
    """From now on the slot's cache holds tokens of this holder and nobody else's: the server has said so.

    It restored `kv_tokens` from the holder's file, or (None) has begun to read for it and reuses nothing from before.
    A turn that takes the slot from this work finds it warm then. Raises LeaseLost.
    """
    outline = None if kv_tokens is None or kv_outline is None else json.dumps(kv_outline)
    about = {"slot": grant.slot, "fence": grant.fence, "kv_tokens": kv_tokens, "kv_outline": outline}
    if statements.row(sql.FILL, about) is None:
        raise LeaseLost(f"slot={grant.slot} fence={grant.fence}")
    return replace(grant, warm=True, kv_tokens=kv_tokens, kv_task=None, kv_outline=kv_outline if outline else None)


def release(
    grant: Grant, kv_tokens: int | None, kv_task: int | None, kv_outline: Any = None, *, used: bool = True
) -> None:
    """End the work and keep the slot warm for its holder. Only after `/slots` showed it quiet with these two figures.

    `kv_tokens` None: what the cache holds is not known. `kv_outline` is the holder's own note of what it holds, which
    its next grant brings back. `used` False, of other work than a turn: its conversation counts as used when it was
    before. Call it outside of a transaction: one of which it is part may be forgotten by a Postgres that crashes.
    Raises LeaseLost.
    """
    about = {
        "slot": grant.slot,
        "fence": grant.fence,
        "kv_tokens": kv_tokens,
        "kv_task": kv_task,
        "kv_outline": None if kv_tokens is None or kv_outline is None else json.dumps(kv_outline),
        "used": used,
        "idle_ttl": settings.LEASE_IDLE_TTL,
    }
    if statements.row(sql.RELEASE, about) is None:
        raise LeaseLost(f"slot={grant.slot} fence={grant.fence}")


def give_back(grant: Grant) -> None:
    """End work that belonged to nobody and of which nothing runs any more: the slot is free. Raises LeaseLost."""
    if statements.row(sql.GIVE_BACK, {"slot": grant.slot, "fence": grant.fence}) is None:
        raise LeaseLost(f"slot={grant.slot} fence={grant.fence}")


def revoke(slot: int, fence: int) -> bool:
    """End a lease at once, busy or idle. Its holder is free to go elsewhere; the slot is `stopping` until quiet."""
    return statements.row(sql.REVOKE, {"slot": slot, "fence": fence}) is not None


def evict(slot: int, fence: int) -> bool:
    """The same by an administrator's wish: the cache counts as unknown, so that the next turn reads history again."""
    return statements.row(sql.EVICT, {"slot": slot, "fence": fence}) is not None


def leave(holders: Sequence[uuid.UUID]) -> None:
    """End what is kept warm for these: they are put away. Whoever comes back meanwhile may find the cache as it was."""
    statements.rows(sql.LEAVE, {"holders": list(holders)})


def forget(holders: Sequence[uuid.UUID]) -> None:
    """End every lease of these, busy ones too, and forget what caches and files hold: they will be no more."""
    statements.rows(sql.FORGET, {"holders": list(holders)})
    parked.forget(holders)


def take_out(server: int) -> list[int]:
    """End every lease on a server that cannot be trusted any more; the fences that counted until now.

    What runs there is stopped, and every cache counts as unknown. Call in a transaction that holds the server's row.
    """
    return [fence for _, fence in statements.rows(sql.TAKE_OUT, {"server": server})]


def leave_retired() -> list[int]:
    """End what is kept warm on servers that nobody uses any more; the slots."""
    return [slot for (slot,) in statements.rows(sql.LEAVE_RETIRED, {})]


def reap() -> list[int]:
    """Revoke what nobody renewed or took over in time, other work than turns at once; the slots."""
    return _reap(None, settings.LEASE_REAP_GRACE)


def reap_at_once(fences: Sequence[int]) -> list[int]:
    """The same for these leases without their grace: there is nothing to take over under them."""
    return _reap(list(fences), 0.0)


def _reap(fences: list[int] | None, grace: float) -> list[int]:
    about = {"fences": fences, "grace": grace, "ttl": settings.LEASE_TTL}
    return [slot for (slot,) in statements.rows(sql.REAP, about)]


def stopped(slot: int, stream_id: uuid.UUID) -> bool:
    """The server confirmed that `stream_id` is gone and the slot quiet: it may be leased again, its cache unknown."""
    stopping = Slot.objects.filter(pk=slot, stream_id=stream_id, condition=Slot.Condition.STOPPING)
    return stopping.update(condition=Slot.Condition.READY, stream_id=None, **_UNKNOWN) > 0


def empty_server(server: int, total_slots: int) -> None:
    """Another process answers at this server: every lease ends, every cache is empty, slots beyond it are gone.

    Call in the transaction that recorded the new process, its row locked.
    """
    _empty(server, total_slots, PastLease.EndedBy.SERVER_RESTARTED)
    known = set(Slot.objects.filter(server=server).values_list("id_slot", flat=True))
    Slot.objects.bulk_create(Slot(server_id=server, id_slot=n) for n in range(total_slots) if n not in known)


def vacate(server: int, total_slots: int) -> int | None:
    """End what is kept warm there and forget every cache, because a probe will overwrite them.

    The newest fence then, for `untouched`; None, changing nothing, while a slot is busy or stopping. Call in a
    transaction that holds the server's row.
    """
    rows = Slot.objects.select_for_update(of=("self",), no_key=True).filter(server=server).order_by("pk")
    if any(row.phase == Slot.Phase.BUSY or row.condition == Slot.Condition.STOPPING for row in rows):
        return None
    _empty(server, total_slots, PastLease.EndedBy.EVICTED)
    return _newest_fence(server)


def untouched(server: int, fence: int) -> bool:
    """Whether no slot there was leased since `vacate` said `fence`."""
    return _newest_fence(server) == fence


def leave_unused(server: int) -> None:
    """From now on only slot 0 of this server is leased. Call in the transaction that made it `ready`."""
    others = Slot.objects.filter(server=server, id_slot__gt=0, phase=Slot.Phase.FREE)
    others.filter(condition=Slot.Condition.READY).update(condition=Slot.Condition.UNUSED)


def forget_caches(server: int) -> None:
    """The server freed them while nothing ran there (it went to sleep): its leases stay, and are cold."""
    Slot.objects.filter(server=server).exclude(phase=Slot.Phase.BUSY).update(**_UNKNOWN)


def _empty(server: int, total_slots: int, ended_by: PastLease.EndedBy) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql.EMPTY_SERVER, {"server": server, "total": total_slots, "ended_by": ended_by.value})


def _newest_fence(server: int) -> int:
    return int(Slot.objects.filter(server=server).aggregate(newest=Max("fence"))["newest"])


def _about(holder: uuid.UUID | None, worker: uuid.UUID, servers: Sequence[int]) -> dict[str, Any]:
    return {
        "holder": holder,
        "worker": worker,
        "servers": list(servers),
        "work": Slot.Work.TURN.value,
        "ttl": settings.LEASE_TTL,
    }
