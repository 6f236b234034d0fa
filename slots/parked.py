"""The only writer of parked files' rows: a bounded pool of names for each server, and whose cache each file holds.

A row says the weaker truth before a file is written (`writing`, with the fence of the lease that writes) and the
stronger one after it (`ready`), in a statement that holds that lease's slot row. What is not `ready` is read by nobody:
whatever died between two of these steps left a file that is overwritten one day. `stale` says that this is due.
Lock order: server, slot row, parked file, where a transaction locks more than one of them.
"""

import hashlib
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import IntegrityError
from django.db.models import Q
from django.db.models.functions import Coalesce, Now

from slots import statements
from slots.grants import Grant
from slots.models import Park, Server, Slot

State = Park.State

_HELD = """
WITH held AS (
  SELECT id FROM slots_slot WHERE id = %(slot)s AND fence = %(fence)s AND phase = 'busy' FOR NO KEY UPDATE)"""

# Nobody writes it and nobody reads it: the leases under which that was done are over.
_LEFT_ALONE = "NOT EXISTS (SELECT FROM slots_slot w WHERE w.phase = 'busy' AND w.fence IN (p.fence, p.reader))"

_RESIDENT = """EXISTS (SELECT FROM slots_slot r
               WHERE r.server_id = p.server_id AND r.kv_of = p.holder AND r.holder = p.holder)"""

# The holder's own file; else one whose overwriting is due, which that is; else an empty one; else one whose holder is
# in a slot there and would have to write it anew anyway; else the one whose holder was away longest. Ahead of time
# nobody's who is in a slot: two of them would take it from each other for ever. Not at all where the holder's own is as
# new as the slot, or somebody is at it: its old cache may be in two slots, and its new one in a third.
_BEGIN = f"""
{_HELD},
own AS (
  SELECT p.id, p.saved_at FROM slots_park p
  WHERE p.server_id = %(server)s AND p.holder = %(holder)s AND p.state IN ('writing', 'ready')),
pick AS (
  SELECT p.id FROM slots_park p
  WHERE p.server_id = %(server)s AND p.number < %(most)s AND EXISTS (SELECT FROM held) AND {_LEFT_ALONE}
    AND NOT EXISTS (SELECT FROM own WHERE own.id <> p.id OR p.state = 'ready' AND own.saved_at >= %(used_at)s)
    AND NOT EXISTS (SELECT FROM slots_slot o
                    WHERE o.server_id = %(server)s AND o.holder = %(holder)s AND o.id <> %(slot)s)
    AND NOT (%(ahead)s AND p.state = 'ready' AND p.holder <> %(holder)s AND {_RESIDENT})
  ORDER BY p.state IN ('stale', 'writing') DESC, p.state = 'empty' DESC, {_RESIDENT} DESC, p.used_at, p.tokens, p.number
  LIMIT 1 FOR NO KEY UPDATE OF p SKIP LOCKED)
UPDATE slots_park p
SET state = 'writing', holder = %(holder)s, fence = %(fence)s, reader = NULL, tokens = NULL, bytes = NULL,
    outline = NULL, fingerprint = '', due_at = NULL, saved_at = statement_timestamp(), used_at = %(used_at)s
FROM pick WHERE p.id = pick.id RETURNING p.id, p.name"""

_KEEP = f"""
{_HELD}
UPDATE slots_park p
SET state = 'ready', fence = NULL, tokens = %(tokens)s, bytes = %(bytes)s, outline = %(outline)s,
    fingerprint = v.fingerprint
FROM slots_server v
WHERE p.id = %(park)s AND p.state = 'writing' AND p.fence = %(fence)s AND v.id = p.server_id
  AND EXISTS (SELECT FROM held)
RETURNING p.id"""

_FIND = f"""
{_HELD}
UPDATE slots_park p SET reader = %(fence)s, used_at = statement_timestamp()
FROM slots_server v
WHERE p.server_id = %(server)s AND p.holder = ANY(%(holders)s) AND p.state = 'ready' AND v.id = p.server_id
  AND p.fingerprint = v.fingerprint AND EXISTS (SELECT FROM held)
RETURNING p.id, p.name, p.holder, p.tokens, p.outline"""

_BEGIN_WIPE = f"""
{_HELD},
pick AS (
  SELECT p.id FROM slots_park p
  WHERE p.server_id = %(server)s AND p.state = 'stale' AND EXISTS (SELECT FROM held) AND {_LEFT_ALONE}
  ORDER BY p.due_at LIMIT 1 FOR NO KEY UPDATE OF p SKIP LOCKED)
UPDATE slots_park p
SET state = 'writing', holder = %(holder)s, fence = %(fence)s, reader = NULL, due_at = NULL
FROM pick WHERE p.id = pick.id RETURNING p.id, p.name"""


_UNPARKED = """
SELECT s.server_id, s.holder, s.used_at
FROM slots_slot s JOIN slots_server v ON v.id = s.server_id
WHERE v.id = ANY(%(servers)s) AND v.state = 'ready' AND v.parking = 'effective'
  AND s.condition = 'ready' AND s.phase = 'idle' AND s.kv_of = s.holder AND s.kv_tokens >= %(least)s
  AND s.kv_outline IS NOT NULL AND s.since < statement_timestamp() - %(seconds)s * interval '1 s'
  AND NOT EXISTS (SELECT FROM slots_slot b WHERE b.server_id = s.server_id AND b.phase = 'busy')
  AND NOT EXISTS (SELECT FROM slots_park p
                  WHERE p.server_id = s.server_id AND p.holder = s.holder
                    AND (p.state = 'writing' OR p.state = 'ready' AND p.saved_at >= s.used_at))
ORDER BY s.used_at, s.id"""

_DUE = f"""
SELECT p.server_id, date_part('epoch', statement_timestamp() - min(p.due_at))
FROM slots_park p JOIN slots_server v ON v.id = p.server_id
WHERE v.id = ANY(%(servers)s) AND v.state = 'ready' AND v.parking IN ('effective', 'ineffective')
  AND p.state = 'stale' AND {_LEFT_ALONE}
  AND NOT EXISTS (SELECT FROM slots_slot w WHERE w.server_id = v.id AND w.work = 'wipe')
GROUP BY p.server_id"""


@dataclass(frozen=True, slots=True)
class Unparked:
    """A cache that is in its slot alone, last used at `used_at`."""

    server: int
    holder: uuid.UUID
    used_at: datetime


@dataclass(frozen=True, slots=True)
class File:
    """A file that may be read, or is to be written, under a lease: `tokens` and `outline` of what it holds."""

    park: int
    name: str
    holder: uuid.UUID
    tokens: int = 0
    outline: Any = None


def provide(server: int) -> None:
    """Give a server its LLAMA_PARKED names, once; what lies in more of them than that is to be wiped."""
    known = set(Park.objects.filter(server=server).values_list("number", flat=True))
    Park.objects.bulk_create(
        [
            Park(server_id=server, number=number, name=f"{installation()}-{server}-{number}")
            for number in range(settings.LLAMA_PARKED)
            if number not in known
        ],
        ignore_conflicts=True,
    )
    _spoil(Q(server=server, number__gte=settings.LLAMA_PARKED, state=State.READY))


def begin(grant: Grant, holder: uuid.UUID, used_at: datetime, *, ahead: bool = False) -> File | None:
    """A name to save the cache of `holder` under, which the slot of `grant` has held since `used_at`.

    `ahead`: the slot stays its holder's. None where there is no name to be had, or no need, as its file is as new as
    that: then nothing may be saved.
    """
    about = _about(grant) | {"holder": holder, "used_at": used_at, "most": settings.LLAMA_PARKED, "ahead": ahead}
    try:
        row = statements.row(_BEGIN, about)
    except IntegrityError:  # park_one_per_holder: somebody else has just begun to write for it
        return None
    return File(row[0], row[1], holder) if row else None


def keep(grant: Grant, file: File, tokens: int, size: int, outline: Any) -> bool:
    """The server confirmed what it wrote: from now on the file counts. False, changing nothing, for a lost lease."""
    about = {"park": file.park, "tokens": tokens, "bytes": size, "outline": json.dumps(outline)}
    return statements.row(_KEEP, _about(grant) | about) is not None


def spoil(file: File) -> None:
    """What it holds is not known, or of no use: it must not be read, whoever believes to have written it meanwhile."""
    _spoil(Q(pk=file.park))


def find(grant: Grant, holders: Sequence[uuid.UUID]) -> list[File]:
    """The files of `holders` on the server of `grant` that its process can go on from, in the order of `holders`.

    Nobody overwrites one as long as the lease lasts that found it last: of a preset's, which others find too, what was
    read is judged by `unchanged`.
    """
    rows = statements.rows(_FIND, _about(grant) | {"holders": list(holders)})
    files = [
        File(park, name, holder, tokens, json.loads(outline) if outline else None)
        for park, name, holder, tokens, outline in rows
    ]
    return sorted(files, key=lambda file: list(holders).index(file.holder))


def unchanged(file: File) -> bool:
    """Whether nobody has begun to write over it since it was found, and it still counts."""
    return Park.objects.filter(pk=file.park, state=State.READY, holder=file.holder, tokens=file.tokens).exists()


def forget(holders: Sequence[uuid.UUID]) -> None:
    """Nothing of these may be kept: their files count no more, and their overwriting is due."""
    _spoil(Q(holder__in=holders))


def holders() -> set[uuid.UUID]:
    """Whose caches lie in files, or are being written there."""
    rows = Park.objects.filter(state__in=[State.READY, State.WRITING])
    return {holder for holder in rows.values_list("holder", flat=True) if holder}


def unparked(servers: Sequence[int], least: int, seconds: float) -> list[Unparked]:
    """Who has a slot to themselves for `seconds`, at least `least` tokens in it, and no file as new as that.

    Only on servers of which no slot is busy; who would lose the slot first comes first.
    """
    about = {"servers": list(servers), "least": least, "seconds": seconds}
    return [Unparked(*row) for row in statements.rows(_UNPARKED, about)]


def due_on(servers: Sequence[int]) -> dict[int, float]:
    """Where files are to be overwritten and nobody is at it; for how many seconds the first of them has been due."""
    return dict(statements.rows(_DUE, {"servers": list(servers)}))


def begin_wipe(grant: Grant) -> File | None:
    """The name that has waited longest to be overwritten; None when none is due, or the lease is lost."""
    row = statements.row(_BEGIN_WIPE, _about(grant) | {"holder": grant.holder})
    return File(row[0], row[1], grant.holder) if row else None


def wiped(grant: Grant, file: File) -> bool:
    """The server confirmed that it wrote nothing over it; False if somebody else has it by now."""
    mine = Park.objects.filter(pk=file.park, state=State.WRITING, fence=grant.fence)
    return mine.update(state=State.EMPTY, holder=None, fence=None, saved_at=None, fingerprint="") > 0


def abandoned() -> int:
    """What was being written under leases that are over was not confirmed; how many files that were."""
    busy = Slot.objects.filter(phase=Slot.Phase.BUSY).values("fence")
    return _spoil(Q(state=State.WRITING) & ~Q(fence__in=busy))


def misfits(server: int, fingerprint: str) -> int:
    """Files of another model, or of other flags, are of no use to this process; how many that were."""
    return _spoil(Q(server=server, state=State.READY) & ~Q(fingerprint=fingerprint))


def useless(server: int) -> None:
    """Nothing is restored there: no file is kept for that."""
    _spoil(Q(server=server, state=State.READY))


def holders_on(server: Server) -> set[uuid.UUID]:
    """Whose files its process can go on from, and whose are being written."""
    rows = Park.objects.filter(server=server, state__in=[State.WRITING, State.READY])
    usable = rows.filter(Q(state=State.WRITING) | Q(fingerprint=server.fingerprint))
    return {holder for holder in usable.values_list("holder", flat=True) if holder}


def due(server: int | None = None) -> int:
    """How many files are to be overwritten, on all servers or on one."""
    rows = Park.objects.filter(state=State.STALE)
    return (rows if server is None else rows.filter(server=server)).count()


def most_bytes(server: Server) -> int | None:
    """What the files of a server take on its disk at most; None while the size of a token there is not known."""
    if not server.token_bytes or not server.n_ctx:
        return None
    return round(Park.objects.filter(server=server).count() * server.n_ctx * server.token_bytes)


def installation() -> str:
    """What tells our files from those of another installation that keeps its in the same folder."""
    return hashlib.sha256(f"installation {settings.SECRET_KEY}".encode()).hexdigest()[:8]


def _spoil(which: Q) -> int:
    return Park.objects.filter(which).update(
        state=State.STALE, holder=None, tokens=None, bytes=None, outline=None, due_at=Coalesce("due_at", Now())
    )


def _about(grant: Grant) -> dict[str, Any]:
    return {"slot": grant.slot, "server": grant.server, "fence": grant.fence}
