"""The statements of `slots.leases`, tried under contention. Only it executes them.

Each picks its slot rows under a lock (`pick`), closes what was leased (`past`) and moves the row on, in one statement.
"""

# An expired busy lease is takeable only a whole time to live after Postgres came up: nobody could renew before.
_POSTGRES_SETTLED = "statement_timestamp() > pg_postmaster_start_time() + %(ttl)s * interval '1 s'"

_MOVE_TO_BUSY = """
UPDATE slots_slot s
SET fence = nextval('slots_fence'), phase = 'busy', holder = %(holder)s, work = %(work)s, worker = %(worker)s,
    since = pick.cut, expires_at = statement_timestamp() + %(ttl)s * interval '1 s', used_at = {used_at}{announced}
FROM pick WHERE s.id = pick.id
RETURNING s.id, s.server_id, s.id_slot, s.fence, s.stream_id, {preempted},
          (SELECT v.parks_in_ram FROM slots_server v WHERE v.id = s.server_id),
          pick.kv_of, pick.kv_tokens, pick.kv_task, pick.kv_outline, pick.used_at"""

# With its first request: the weaker truth about the cache is committed before anything is sent.
_ANNOUNCED = """,
    stream_id = %(stream_id)s, kv_of = CASE WHEN pick.kv_of = %(holder)s THEN pick.kv_of END, kv_tokens = NULL,
    kv_task = NULL, kv_outline = NULL"""

# What weighs is when a conversation was last used: other work than a turn leaves that as it was, on another slot too.
# One that never had a turn, or none that is remembered, is as little worth as one that was left an idle time ago.
_USED_BEFORE = """CASE WHEN pick.holder = %(holder)s THEN pick.used_at
      ELSE coalesce((SELECT max(p.ended_at) FROM slots_pastlease p WHERE p.holder = %(holder)s AND p.work = 'turn'),
                    statement_timestamp() - %(idle_ttl)s * interval '1 s') END"""

_CLOSE = """
past AS (INSERT INTO slots_pastlease
           (fence, slot_id, holder, phase, work, worker, stream_id, began_at, ended_at, ended_by)
  SELECT fence, id, holder, phase, work, worker, stream_id, since, cut, {ended_by} FROM pick WHERE phase <> 'free')
"""

_FREE = """
UPDATE slots_slot s
SET fence = nextval('slots_fence'), phase = 'free', holder = NULL, work = NULL, worker = NULL, expires_at = NULL,
    since = pick.cut, condition = CASE WHEN s.stream_id IS NULL THEN s.condition ELSE 'stopping' END
FROM pick WHERE s.id = pick.id RETURNING s.id"""

_FREE_UNKNOWN = _FREE.replace(
    "since = pick.cut,", "since = pick.cut, kv_of = NULL, kv_tokens = NULL, kv_task = NULL, kv_outline = NULL,"
)

_SERVES = "v.state = 'ready' AND v.id = ANY(%(servers)s) AND (%(model)s = '' OR v.model = %(model)s)"

# The own slot waits for its row: skipping it while a heartbeat has it would mean a cold start somewhere else.
_OWN = f"""
WITH pick AS (
  SELECT s.*, greatest(s.since, clock_timestamp()) AS cut FROM slots_slot s JOIN slots_server v ON v.id = s.server_id
  WHERE s.holder = %(holder)s AND s.condition = 'ready' AND {{may_have}} AND {_SERVES}
  FOR NO KEY UPDATE OF s),
{_CLOSE.format(ended_by="CASE WHEN phase = 'busy' THEN 'preempted' ELSE 'next_turn' END")}"""

# What it takes to have as much in a cache again, in milliseconds: read, or restored where that is quicker (NULL: it
# cannot be). As long as nothing is measured, a model token counts as much on every server.
_MS = "least({tokens} * coalesce(v.read_ms, 1), CASE WHEN {restorable} THEN v.restore_ms END)"
_PARKS = "v.parking = 'effective'"

# What it would cost that a slot's own holder has to come back from elsewhere, by how likely that is to happen; and to
# save its cache first, where no file has it. Whatever is not confirmed is nothing to lose.
_VICTIM = f"""CASE WHEN s.kv_of = s.holder AND s.kv_tokens > 0 THEN
    CASE WHEN s.expires_at < statement_timestamp() THEN 0
         ELSE {_MS.format(tokens="s.kv_tokens", restorable=_PARKS)}
              * exp(-date_part('epoch', statement_timestamp() - s.used_at) / %(idle_ttl)s::float8) END
    + CASE WHEN {_PARKS} AND theirs.id IS NULL THEN coalesce(v.save_ms, 0) ELSE 0 END
  ELSE 0 END"""
_OWN_COST = _MS.format(tokens="%(tokens)s::float8", restorable="mine.id IS NOT NULL")

# How much is going on at a server, from 0 to 2 per slot: busy counts twice, what yields to a turn once.
_LOADS = """
  SELECT server_id, avg(CASE WHEN condition = 'stopping' OR work = 'turn' THEN 2 WHEN phase = 'free' THEN 0 ELSE 1 END)
         AS load
  FROM slots_slot WHERE condition IN ('ready', 'stopping') AND server_id = ANY(%(servers)s) GROUP BY server_id"""

_FILE = "{file}.server_id = v.id AND {file}.state = 'ready' AND {file}.fingerprint = v.fingerprint"
_MINE, _THEIRS = _FILE.format(file="mine"), _FILE.format(file="theirs")
_HAS_FILE = f"""EXISTS (
  SELECT FROM slots_park mine JOIN slots_server v ON {_MINE}
  WHERE mine.holder = %(holder)s AND {_PARKS} AND {_SERVES})"""

# Where what is to be had is of the same kind:
# 0 free, and the own cache is still in it        the newest
# 1 free, on a server that has the own file       the least loaded server; so are 2 and 4
# 2 free, and there is no such file; or long enough that its server counts as idle: the conversation moves, once
# 3 idle                                          what costs least in sum: its holder's way back, and the own one
# 4 free after all
# 5 busy with what yields to a turn
# 6 the last: idle or so, and its holder waits for a turn that may not begin yet
_KIND = f"""CASE WHEN s.phase = 'free' AND s.kv_of = %(holder)s THEN 0
       WHEN s.phase = 'free' AND mine.id IS NOT NULL THEN 1
       WHEN s.phase = 'free'
            AND (NOT {_HAS_FILE} OR s.since < statement_timestamp() - %(move)s * interval '1 s') THEN 2
       WHEN s.phase = 'free' THEN 4
       WHEN s.holder = ANY(%(last)s::uuid[]) THEN 6
       WHEN s.phase = 'idle' THEN 3 ELSE 5 END"""

_WHY_OTHER = """CASE WHEN phase = 'busy' THEN 'preempted' WHEN expires_at < statement_timestamp() THEN 'expired'
       ELSE 'evicted' END"""
_OTHER = f"""
WITH pick AS (
  SELECT s.*, greatest(s.since, clock_timestamp()) AS cut FROM slots_slot s JOIN slots_server v ON v.id = s.server_id
  LEFT JOIN ({_LOADS}) loads ON loads.server_id = v.id
  LEFT JOIN slots_park mine ON mine.holder = %(holder)s AND {_MINE} AND {_PARKS}
  LEFT JOIN slots_park theirs ON theirs.holder = s.holder AND {_THEIRS} AND theirs.saved_at >= s.used_at
  WHERE {_SERVES} AND s.condition = 'ready' AND {{may_have}}
    AND NOT EXISTS (SELECT FROM slots_slot o WHERE o.holder = %(holder)s)
  ORDER BY {_KIND},
           CASE WHEN s.phase = 'idle' THEN {_VICTIM} + {_OWN_COST}
                WHEN s.kv_of = %(holder)s THEN -date_part('epoch', s.used_at) ELSE loads.load END,
           s.kv_of IS NULL DESC, s.used_at, s.id
  LIMIT 1 FOR NO KEY UPDATE OF s SKIP LOCKED),
{_CLOSE.format(ended_by=_WHY_OTHER)}"""

# Two statements: most turns find their own slot, and would pay for what it takes to choose another one too (0.2 ms of
# 0.7, measured). None of them takes a turn's.
_YIELDS = "(s.phase = 'idle' OR s.phase = 'busy' AND s.work <> 'turn')"
_SPARES = f"(s.phase = 'free' OR {_YIELDS} AND s.holder <> ALL(%(spared)s::uuid[]))"
_FOR_TURN = _MOVE_TO_BUSY.format(
    used_at="statement_timestamp()", announced=_ANNOUNCED,
    preempted="CASE WHEN pick.phase = 'busy' THEN pick.stream_id END",
)  # fmt: skip
_FOR_OTHER_WORK = _MOVE_TO_BUSY.format(used_at=_USED_BEFORE, announced=_ANNOUNCED, preempted="NULL::uuid")

# Nobody's but by name: its holder is away longer than a lease lives between turns. Without these no slot would be free
# any more once each was leased.
_NOBODYS = "(s.phase = 'free' OR s.phase = 'idle' AND s.expires_at < statement_timestamp())"

ACQUIRE_OWN = _OWN.format(may_have=_YIELDS) + _FOR_TURN
ACQUIRE_OTHER = _OTHER.format(may_have=_SPARES) + _FOR_TURN
BORROW_OWN = _OWN.format(may_have="s.phase = 'idle'") + _FOR_OTHER_WORK
BORROW_FREE = _OTHER.format(may_have=_NOBODYS) + _FOR_OTHER_WORK
BORROW_FREE_OR_IDLE = _OTHER.format(may_have="s.phase IN ('free', 'idle')") + _FOR_OTHER_WORK

# CTEs of a statement of the caller's: to the `holder` of its CTE `head` its own idle slot. Whoever has that row does
# something with it: nobody is waited for.
_LEASED = "slot, server, id_slot, fence, stream_id, preempted, in_ram, kv_of, kv_tokens, kv_task, kv_outline, used_at"
LEASED_COLUMNS = len(_LEASED.split())
_ANY_MODEL = "head.model = '' AND (SELECT count(*) FROM slots_server WHERE state <> 'retired') = 1"
LEASED_TO_HEAD = f"""
pick AS (
  SELECT s.*, greatest(s.since, clock_timestamp()) AS cut
  FROM head JOIN slots_slot s ON s.holder = head.holder JOIN slots_server v ON v.id = s.server_id
  WHERE s.condition = 'ready' AND s.phase = 'idle'
    AND v.state = 'ready' AND v.id = ANY(%(servers)s) AND (v.model = head.model OR {_ANY_MODEL})
  FOR NO KEY UPDATE OF s SKIP LOCKED),
{_CLOSE.format(ended_by="'next_turn'")},
leased ({_LEASED}) AS ({_FOR_TURN.replace("%(holder)s", "pick.holder")})"""

# Also one that is at work, unless with a turn: its holder is not kept from answering elsewhere.
LEAVE_OWN_SLOT = f"""
WITH pick AS (
  SELECT s.*, greatest(s.since, clock_timestamp()) AS cut FROM slots_slot s JOIN slots_server v ON v.id = s.server_id
  WHERE s.holder = %(holder)s AND {_YIELDS} AND NOT ({_SERVES})
  FOR NO KEY UPDATE OF s),
{_CLOSE.format(ended_by="'moved'")}
{_FREE}"""

_PREEMPTED_BEFORE = """(
  SELECT CASE WHEN last.ended_by = 'preempted' THEN last.stream_id END FROM slots_pastlease last
  WHERE last.slot_id = s.id ORDER BY last.fence DESC LIMIT 1)"""

# Of turns only: other work is not gone on with. What its slot was taken from last may still run there, if the former
# worker went before it had stopped it.
TAKE_OVER = f"""
WITH pick AS (
  SELECT s.*, greatest(s.since, clock_timestamp()) AS cut FROM slots_slot s JOIN slots_server v ON v.id = s.server_id
  WHERE s.fence = %(fence)s AND s.holder = %(holder)s AND s.phase = 'busy' AND s.work = 'turn' AND s.condition = 'ready'
    AND v.state IN ('ready', 'draining') AND v.id = ANY(%(servers)s)
    AND s.expires_at < statement_timestamp() AND {_POSTGRES_SETTLED}
  FOR NO KEY UPDATE OF s SKIP LOCKED),
{_CLOSE.format(ended_by="'taken_over'")}
{_MOVE_TO_BUSY.format(used_at="statement_timestamp()", announced="", preempted=_PREEMPTED_BEFORE)}"""

RENEW = """
WITH held AS (
  SELECT s.id FROM slots_slot s
  JOIN unnest(%(slots)s::bigint[], %(fences)s::bigint[]) AS mine (id, fence) USING (id, fence)
  WHERE s.phase = 'busy' ORDER BY s.id FOR NO KEY UPDATE OF s)
UPDATE slots_slot s SET expires_at = statement_timestamp() + %(ttl)s * interval '1 s'
FROM held WHERE s.id = held.id RETURNING s.fence"""

# Not waited for until it is on the disk. A Postgres that crashes within a moment may forget it: then the slot is busy
# until the lease expires, and read again.
RELEASE = f"""
WITH pick AS (
  SELECT *, greatest(since, clock_timestamp()) AS cut FROM slots_slot
  WHERE id = %(slot)s AND fence = %(fence)s AND phase = 'busy' FOR NO KEY UPDATE),
{_CLOSE.format(ended_by="CASE WHEN work = 'turn' THEN 'turn_done' ELSE 'work_done' END")}
UPDATE slots_slot s
SET fence = nextval('slots_fence'), phase = 'idle', work = NULL, worker = NULL, stream_id = NULL, since = pick.cut,
    expires_at = statement_timestamp() + %(idle_ttl)s * interval '1 s',
    used_at = CASE WHEN %(used)s THEN statement_timestamp() ELSE s.used_at END,
    kv_of = CASE WHEN %(kv_tokens)s::integer IS NULL THEN NULL ELSE s.holder END,
    kv_tokens = %(kv_tokens)s, kv_task = %(kv_task)s, kv_outline = %(kv_outline)s
FROM pick WHERE s.id = pick.id RETURNING s.id, set_config('synchronous_commit', 'off', true)"""

# Nothing of ours runs there any more, so that nothing need be stopped.
GIVE_BACK = f"""
WITH pick AS (
  SELECT *, greatest(since, clock_timestamp()) AS cut FROM slots_slot
  WHERE id = %(slot)s AND fence = %(fence)s AND phase = 'busy' FOR NO KEY UPDATE),
{_CLOSE.format(ended_by="'work_done'")}
UPDATE slots_slot s
SET fence = nextval('slots_fence'), phase = 'free', holder = NULL, work = NULL, worker = NULL, expires_at = NULL,
    stream_id = NULL, since = pick.cut, kv_of = NULL, kv_tokens = NULL, kv_task = NULL, kv_outline = NULL
FROM pick WHERE s.id = pick.id RETURNING s.id"""

_THIS = """
WITH pick AS (
  SELECT *, greatest(since, clock_timestamp()) AS cut FROM slots_slot
  WHERE id = %(slot)s AND fence = %(fence)s AND phase <> 'free' FOR NO KEY UPDATE),"""
REVOKE = _THIS + _CLOSE.format(ended_by="'revoked'") + _FREE
EVICT = _THIS + _CLOSE.format(ended_by="'evicted'") + _FREE_UNKNOWN

_OF_HOLDERS = """
WITH pick AS (
  SELECT *, greatest(since, clock_timestamp()) AS cut FROM slots_slot
  WHERE {whose} ORDER BY id FOR NO KEY UPDATE),""" + _CLOSE.format(ended_by="'revoked'")
LEAVE = _OF_HOLDERS.format(whose="holder = ANY(%(holders)s) AND phase = 'idle'") + _FREE
FORGET = _OF_HOLDERS.format(whose="holder = ANY(%(holders)s) OR kv_of = ANY(%(holders)s)") + _FREE_UNKNOWN

# Every request that may run there is given up: its slot is `stopping` until the server says that it is quiet.
TAKE_OUT = f"""
WITH pick AS (
  SELECT *, greatest(since, clock_timestamp()) AS cut FROM slots_slot
  WHERE server_id = %(server)s ORDER BY id FOR NO KEY UPDATE),
{_CLOSE.format(ended_by="'moved'")}
{_FREE_UNKNOWN}, pick.fence"""

LEAVE_RETIRED = f"""
WITH pick AS (
  SELECT s.*, greatest(s.since, clock_timestamp()) AS cut FROM slots_slot s JOIN slots_server v ON v.id = s.server_id
  WHERE v.state = 'retired' AND s.phase = 'idle' ORDER BY s.id FOR NO KEY UPDATE OF s),
{_CLOSE.format(ended_by="'moved'")}
{_FREE}"""

# Whoever takes over has its grace for turns; the other work is nobody's to go on with.
REAP = f"""
WITH pick AS (
  SELECT *, greatest(since, clock_timestamp()) AS cut FROM slots_slot
  WHERE phase = 'busy' AND (%(fences)s::bigint[] IS NULL OR fence = ANY(%(fences)s))
    AND expires_at + CASE WHEN work = 'turn' THEN %(grace)s ELSE 0 END * interval '1 s' < statement_timestamp()
    AND statement_timestamp() > pg_postmaster_start_time() + (%(ttl)s + %(grace)s) * interval '1 s'
  ORDER BY id FOR NO KEY UPDATE SKIP LOCKED),
{_CLOSE.format(ended_by="'revoked'")}
{_FREE}"""

EMPTY_SERVER = f"""
WITH pick AS (
  SELECT *, greatest(since, clock_timestamp()) AS cut FROM slots_slot
  WHERE server_id = %(server)s ORDER BY id FOR NO KEY UPDATE),
{_CLOSE.format(ended_by="%(ended_by)s")}
UPDATE slots_slot s
SET fence = nextval('slots_fence'), phase = 'free', holder = NULL, work = NULL, worker = NULL, expires_at = NULL,
    stream_id = NULL, kv_of = NULL, kv_tokens = 0, kv_task = NULL, kv_outline = NULL, since = pick.cut,
    condition = CASE WHEN s.id_slot < %(total)s THEN 'ready' ELSE 'gone' END
FROM pick WHERE s.id = pick.id"""

ANNOUNCE = """
UPDATE slots_slot SET stream_id = %(stream_id)s, kv_of = CASE WHEN kv_of = holder THEN kv_of END,
                      kv_tokens = NULL, kv_task = NULL, kv_outline = NULL
WHERE id = %(slot)s AND fence = %(fence)s AND phase = 'busy' RETURNING kv_of IS NOT NULL"""

FILL = """
UPDATE slots_slot SET kv_of = holder, kv_tokens = %(kv_tokens)s, kv_outline = %(kv_outline)s
WHERE id = %(slot)s AND fence = %(fence)s AND phase = 'busy' RETURNING id"""
