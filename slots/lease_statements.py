"""The statements of `slots.leases`, tried under contention. Only it executes them.

Each picks its slot rows under a lock (`pick`), closes what was leased (`past`) and moves the row on, in one statement.
"""

# An expired busy lease is takeable only a whole time to live after Postgres came up: nobody could renew before.
_POSTGRES_SETTLED = "statement_timestamp() > pg_postmaster_start_time() + %(ttl)s * interval '1 s'"

_MOVE_TO_BUSY = """
UPDATE slots_slot s
SET fence = nextval('slots_fence'), phase = 'busy', holder = %(holder)s, work = %(work)s, worker = %(worker)s,
    since = pick.cut, expires_at = statement_timestamp() + %(ttl)s * interval '1 s', used_at = statement_timestamp()
FROM pick WHERE s.id = pick.id
RETURNING s.id, s.server_id, s.id_slot, s.fence, s.stream_id, pick.kv_of, pick.kv_tokens, pick.kv_task,
          pick.kv_outline, (SELECT v.parks_in_ram FROM slots_server v WHERE v.id = s.server_id)"""

# With its first request announced: the weaker truth about the cache is committed before anything is sent.
_MOVE_TO_BUSY_ANNOUNCED = _MOVE_TO_BUSY.replace(
    "since = pick.cut,",
    "since = pick.cut, stream_id = %(stream_id)s, kv_of = CASE WHEN pick.kv_of = %(holder)s THEN pick.kv_of END,"
    " kv_tokens = NULL, kv_task = NULL, kv_outline = NULL,",
)

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

# The own slot waits for its row: skipping it while a heartbeat has it would mean a cold start somewhere else.
# Order of the others: free before idle; the one that still holds the own cache; expired; empty; longest unused. Never a
# busy one. Both in one statement: whoever comes for the first time, or finds everything busy, asks once.
ACQUIRE = f"""
WITH own AS (
  SELECT s.*, greatest(s.since, clock_timestamp()) AS cut FROM slots_slot s JOIN slots_server v ON v.id = s.server_id
  WHERE s.holder = %(holder)s AND s.condition = 'ready' AND s.phase = 'idle' AND v.state = 'ready'
    AND v.id = ANY(%(servers)s)
  FOR NO KEY UPDATE OF s),
other AS (
  SELECT s.*, greatest(s.since, clock_timestamp()) AS cut FROM slots_slot s JOIN slots_server v ON v.id = s.server_id
  WHERE v.state = 'ready' AND v.id = ANY(%(servers)s) AND (%(model)s = '' OR v.model = %(model)s)
    AND s.condition = 'ready' AND s.phase IN ('free', 'idle')
    AND NOT EXISTS (SELECT FROM own) AND NOT EXISTS (SELECT FROM slots_slot o WHERE o.holder = %(holder)s)
  ORDER BY s.phase = 'free' DESC, s.kv_of IS NOT DISTINCT FROM %(holder)s DESC,
           coalesce(s.expires_at < statement_timestamp(), false) DESC, s.kv_of IS NULL DESC, s.used_at, s.id
  LIMIT 1 FOR NO KEY UPDATE OF s SKIP LOCKED),
pick AS (
  SELECT *, 'next_turn' AS why FROM own
  UNION ALL
  SELECT *, CASE WHEN expires_at < statement_timestamp() THEN 'expired' ELSE 'evicted' END FROM other),
{_CLOSE.format(ended_by="why")}
{_MOVE_TO_BUSY_ANNOUNCED}"""

LEAVE_OWN_SLOT = f"""
WITH pick AS (
  SELECT s.*, greatest(s.since, clock_timestamp()) AS cut FROM slots_slot s JOIN slots_server v ON v.id = s.server_id
  WHERE s.holder = %(holder)s AND s.phase = 'idle' AND NOT (v.state = 'ready' AND v.id = ANY(%(servers)s))
  FOR NO KEY UPDATE OF s),
{_CLOSE.format(ended_by="'moved'")}
{_FREE}"""

TAKE_OVER = f"""
WITH pick AS (
  SELECT s.*, greatest(s.since, clock_timestamp()) AS cut FROM slots_slot s JOIN slots_server v ON v.id = s.server_id
  WHERE s.fence = %(fence)s AND s.holder = %(holder)s AND s.phase = 'busy' AND s.condition = 'ready'
    AND v.state IN ('ready', 'draining') AND v.id = ANY(%(servers)s)
    AND s.expires_at < statement_timestamp() AND {_POSTGRES_SETTLED}
  FOR NO KEY UPDATE OF s SKIP LOCKED),
{_CLOSE.format(ended_by="'taken_over'")}
{_MOVE_TO_BUSY}"""

RENEW = """
WITH held AS (
  SELECT s.id FROM slots_slot s
  JOIN unnest(%(slots)s::bigint[], %(fences)s::bigint[]) AS mine (id, fence) USING (id, fence)
  WHERE s.phase = 'busy' ORDER BY s.id FOR NO KEY UPDATE OF s)
UPDATE slots_slot s SET expires_at = statement_timestamp() + %(ttl)s * interval '1 s'
FROM held WHERE s.id = held.id RETURNING s.fence"""

RELEASE = f"""
WITH pick AS (
  SELECT *, greatest(since, clock_timestamp()) AS cut FROM slots_slot
  WHERE id = %(slot)s AND fence = %(fence)s AND phase = 'busy' FOR NO KEY UPDATE),
{_CLOSE.format(ended_by="'turn_done'")}
UPDATE slots_slot s
SET fence = nextval('slots_fence'), phase = 'idle', work = NULL, worker = NULL, stream_id = NULL, since = pick.cut,
    expires_at = statement_timestamp() + %(idle_ttl)s * interval '1 s', used_at = statement_timestamp(),
    kv_of = CASE WHEN %(kv_tokens)s::integer IS NULL THEN NULL ELSE s.holder END,
    kv_tokens = %(kv_tokens)s, kv_task = %(kv_task)s, kv_outline = %(kv_outline)s
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

REAP = f"""
WITH pick AS (
  SELECT *, greatest(since, clock_timestamp()) AS cut FROM slots_slot
  WHERE phase = 'busy' AND (%(fences)s::bigint[] IS NULL OR fence = ANY(%(fences)s))
    AND expires_at + %(grace)s * interval '1 s' < statement_timestamp()
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
