"""How long somebody waits for the first token: a range of seconds, from what recent answers took.

Several scenarios are played through, each with other answers of the past in the place of those to come: what runs ends
after so many tokens more, whoever waits begins on the slot that is free first, reads the prompt and writes an answer
of that length. The range holds the middle three fifths of the scenarios. For each turn all parts of what is known come
once, in an order of its own that stays the same: the range moves only when something happens or time goes by.

It knows nothing of who will come meanwhile and be served before, nor of prompts before they were counted: those are
guessed from the conversation's last count and the bytes of the message.
"""

import math
import random
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush, heapreplace
from itertools import accumulate
from typing import Any, NamedTuple
from uuid import UUID

from django.conf import settings
from django.db import connection

from conversations.models import Generation
from conversations.parameters import DEFAULT_MAX_TOKENS
from slots.models import Slot

SCENARIOS = 20
LOW, HIGH = SCENARIOS // 5, SCENARIOS - 1 - SCENARIOS // 5  # of the scenarios in order
PLAYED = 100  # of those who wait: for those behind them time goes on in proportion
RECENT = 200  # answers to learn from
ENOUGH = 8  # answers from which on they speak for themselves
BYTES_PER_TOKEN = 4  # of UTF-8, about right for English and for Chinese
STEPS = ((10, 1), (30, 2), (60, 5), (300, 15), (900, 60), (math.inf, 300))  # up to so many seconds in such steps

_RECENT = """
SELECT g.model, (usage->>'completion_tokens')::float, (timings->>'tokens_per_second')::float,
       (timings->>'busy')::integer, (timings->>'prompt_n')::float,
       ((timings->>'ttft_ms')::float - (timings->>'queue_ms')::float) / 1000
FROM conversations_generation g JOIN conversations_conversation c ON c.id = g.conversation_id
WHERE g.status IN ('done', 'cancelled') AND g.usage IS NOT NULL AND NOT g.imported AND c.deleted_at IS NULL
ORDER BY g.id DESC LIMIT %s"""

# Tokens that a generation will read if its cache is gone, and write at most. Of what leaves no room for an answer about
# half is sent (`conversations.window`).
_WORK = """
CASE WHEN whole.tokens > 0.75 * smallest.n_ctx THEN smallest.n_ctx / 2 ELSE whole.tokens END,
CASE WHEN jsonb_typeof(c.params->'max_tokens') = 'number' THEN (c.params->>'max_tokens')::float
     ELSE %(default_max_tokens)s END"""
_WORK_FROM = """
FROM conversations_generation g
JOIN conversations_conversation c ON c.id = g.conversation_id
JOIN conversations_message a ON a.id = g.message_id
JOIN conversations_message q ON q.id = a.parent_id
LEFT JOIN LATERAL (
  SELECT usage FROM conversations_generation
  WHERE message_id = q.parent_id AND NOT imported ORDER BY id DESC LIMIT 1) b ON true
CROSS JOIN LATERAL (
  SELECT coalesce((b.usage->>'prompt_tokens')::float + (b.usage->>'completion_tokens')::float, 0)
    + (octet_length(q.text) + octet_length(a.text)) / %(bytes_per_token)s AS tokens) whole
CROSS JOIN LATERAL (
  SELECT min(n_ctx)::float AS n_ctx FROM slots_server
  WHERE state = 'ready' AND (g.model = '' OR model = g.model)) smallest"""

_GUESSES = {"bytes_per_token": BYTES_PER_TOKEN, "default_max_tokens": DEFAULT_MAX_TOKENS}

_RUNNING = f"""
SELECT g.fence, g.id, g.owner_id, date_part('epoch', statement_timestamp() - g.started_at), coalesce(k.tokens, 0),
       {_WORK} {_WORK_FROM}
LEFT JOIN LATERAL (SELECT sum(tokens) AS tokens FROM conversations_chunk WHERE generation_id = g.id) k ON true
WHERE g.status = 'running'"""

_SLOTS = """
SELECT v.model, s.fence, s.phase = 'busy' AND s.work = 'turn' OR s.condition = 'stopping',
       count(*) OVER (PARTITION BY v.id)
FROM slots_slot s JOIN slots_server v ON v.id = s.server_id
WHERE v.state = 'ready' AND v.trouble = '' AND s.condition IN ('ready', 'stopping') ORDER BY s.id"""

_WAITING = f"""
WITH waiting AS MATERIALIZED (SELECT * FROM conversations_queue ORDER BY position LIMIT %(most)s),
work (id, prompt, most) AS MATERIALIZED (
  SELECT g.id, {_WORK} {_WORK_FROM} WHERE g.id IN (SELECT id FROM waiting WHERE position <= %(played)s))
SELECT w.id, w.conversation_id, w.owner_id, w.model, w.place, w.running, w.untold, w.began, work.prompt, work.most
FROM waiting w LEFT JOIN work ON work.id = w.id ORDER BY w.position"""


class Estimate(NamedTuple):
    """Seconds until the first token, probably."""

    low: int
    high: int

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2


@dataclass(frozen=True, slots=True)
class Waiter:
    """A queued generation, as far as its wait depends on it."""

    id: UUID
    conversation: UUID
    owner: int
    model: str
    place: int
    running: int  # answers of its person that are being written
    untold: bool  # no estimate was given yet
    began: bool  # its server or worker went
    prompt: float | None  # tokens to be read, guessed; None so far back that it is not looked at
    most: float | None  # tokens that it may write


@dataclass(frozen=True, slots=True)
class Running:
    """A generation that is being answered."""

    id: UUID
    owner: int
    seconds: float  # since it began
    written: float  # tokens so far
    prompt: float
    most: float


@dataclass(frozen=True, slots=True)
class SlotNow:
    """A slot and what runs there. `busy` without `running`: about to be free."""

    model: str
    slots: int  # of its server
    busy: bool = False
    running: Running | None = None


class Sample(NamedTuple):
    """What one answer of the past took."""

    model: str
    tokens: float
    per_second: float | None  # while it was written
    busy: int | None  # slots of its server that were writing, its own included
    read: float | None  # prompt tokens
    reading: float | None  # seconds for them


class Pace:
    """What is to be expected, from answers of the past (at least one)."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        lengths = [sample.tokens for sample in samples]
        if len(lengths) < ENOUGH:  # too few to show how much answers differ
            lengths = [length * factor for length in lengths for factor in (0.5, 1.0, 1.5)]
        self._lengths = sorted(lengths)
        self._samples = samples

    def length(self, part: int, most: float, written: float = 0.0) -> float:
        """Tokens still to be written of an answer, `written` of which are there, as in that part of those before."""
        longer = self._lengths[bisect_right(self._lengths, written) :]
        if not longer:  # never was one so long
            return max(0.0, most - written) * (part + 0.5) / SCENARIOS
        return max(0.0, min(_within(longer, part), most) - written)

    @cached_property
    def per_read_token(self) -> float:
        """Seconds per prompt token, everything up to the first token included."""
        known = [(one.read, one.reading) for one in self._samples if one.read and one.reading and one.reading > 0]
        tokens = sum(read for read, _ in known)
        return sum(seconds for _, seconds in known) / tokens if tokens else 0.0

    def per_token(self, load: int) -> list[float] | None:
        """Seconds per token with `load` slots writing, in order; None while no speed is known."""
        by_load: dict[int, list[float]] = defaultdict(list)
        for one in self._samples:
            if one.per_second:
                by_load[one.busy or 1].append(1 / one.per_second)
        if not by_load:
            return None
        nearest = min(by_load, key=lambda busy: (abs(busy - load), busy))
        # Between a server that does not slow down and one that shares out what it can do.
        factor = math.sqrt(load / nearest)
        return sorted(seconds * factor for seconds in by_load[nearest])


@dataclass(frozen=True, slots=True)
class _Expected:
    """One who waits, or something that runs: seconds of reading and of writing, by scenario."""

    reading: float
    writing: list[float]


def estimates(slots: Sequence[SlotNow], waiting: Sequence[Waiter], samples: Sequence[Sample]) -> list[Estimate | None]:
    """For each of `waiting`, in the order in which turns begin; None where nothing is known or nothing can answer."""
    paces = _Paces(slots, samples)
    played = [one for one in waiting if one.prompt is not None]
    expected = [paces.of(one.model, one.prompt or 0, one.most or 0, one.id.int) for one in played]
    begins: list[list[float]] = [[] for _ in played]
    remaining = [_remaining(slot, paces) for slot in slots]
    for scenario in range(SCENARIOS):
        line = _Line(slots, [until[scenario] for until in remaining])
        for one, work, seconds in zip(played, expected, begins, strict=True):
            if work:
                seconds.append(line.begin(one, work, scenario))
    ranges = [sorted(seconds) for seconds in begins]
    return [_rounded(found) for found in [*ranges, *_behind(played, ranges, waiting[len(played) :])]]


def waiting(most: int) -> list[Waiter]:
    """The first `most` of the queue, in the order in which turns begin. One query."""
    return [Waiter(*row) for row in _rows(_WAITING, _GUESSES | {"most": most, "played": PLAYED})]


def recent() -> list[Sample]:
    """The newest answers. One query."""
    return [Sample(*row) for row in _rows(_RECENT, [RECENT]) if row[1] is not None]


def reading(model: str, tokens: int) -> Estimate | None:
    """Seconds to read so many tokens of a prompt, up to the first token of the answer; None while no speed is known."""
    samples = recent()
    own = [sample for sample in samples if sample.model == model]
    known = sorted(_seconds_per_token(own if len(own) >= ENOUGH else samples))
    if not known:
        return None
    # By tokens, not by answers: of short prompts most of the time is no reading.
    by_tokens = list(accumulate(read for _, read in known))
    parts = [(part + 0.5) / SCENARIOS * by_tokens[-1] for part in range(SCENARIOS)]
    return _rounded([known[bisect_left(by_tokens, part)][0] * tokens for part in parts])


def slots_now() -> list[SlotNow]:
    """Every slot that answers, and what runs there. Two queries."""
    running = {fence: Running(*work) for fence, *work in _rows(_RUNNING, _GUESSES)}
    return [SlotNow(model, slots, busy, running.get(fence)) for model, fence, busy, slots in _rows(_SLOTS, {})]


def error(row: Generation, ttft_ms: int | None) -> float | None:
    """By how much the first estimate was too long, in parts of the real wait (of a second at least); else negative.

    None where no estimate was given, or no token came.
    """
    if row.estimated_at is None or row.estimate_low is None or row.estimate_high is None or ttft_ms is None:
        return None
    waited = ttft_ms / 1000 - (row.estimated_at - row.queued_at).total_seconds()
    told = Estimate(row.estimate_low, row.estimate_high).middle
    return round((told - waited) / max(waited, 1.0), 3)


def measured(generation: UUID, server: int, timings: dict[str, Any]) -> dict[str, Any]:
    """`timings` with how many slots of its server were writing at its end, and how far off its first estimate was."""
    row = Generation.objects.filter(pk=generation).first()
    busy = Slot.objects.filter(server=server, phase=Slot.Phase.BUSY).count()
    off = error(row, timings.get("ttft_ms")) if row else None
    return {**timings, "busy": busy, "estimate_error": off}


class _Paces:
    """The pace by the model that is asked for; of answers by any model while there are too few of one."""

    def __init__(self, slots: Iterable[SlotNow], samples: Sequence[Sample]) -> None:
        self._samples = samples
        self._load: dict[str, int] = defaultdict(int)
        for slot in slots:
            for model in (slot.model, ""):
                self._load[model] = max(self._load[model], slot.slots)
        self._known: dict[str, tuple[Pace, list[float]] | None] = {}

    def of(self, model: str, prompt: float, most: float, luck: int, done: Running | None = None) -> _Expected | None:
        """What is to be expected of an answer; `done`: what there is of it. None while nothing is known."""
        if model not in self._known:
            self._known[model] = self._learn(model)
        if (known := self._known[model]) is None:
            return None
        pace, per_token = known
        written = done.written if done else 0.0
        chance = random.Random(luck)  # noqa: S311  the same each time, so that nobody is told another number for nothing
        lengths, speeds = (chance.sample(range(SCENARIOS), SCENARIOS) for _ in range(2))
        writing = [
            pace.length(length, most, written) * _within(per_token, speed)
            for length, speed in zip(lengths, speeds, strict=True)
        ]
        reading = prompt * pace.per_read_token
        if done:
            reading = 0.0 if done.written else max(0.0, reading - done.seconds)
        return _Expected(reading, writing)

    def _learn(self, model: str) -> tuple[Pace, list[float]] | None:
        own = [sample for sample in self._samples if sample.model == model]
        samples = own if len(own) >= ENOUGH else self._samples
        pace = Pace(samples) if samples else None
        per_token = pace.per_token(self._load[model] or 1) if pace else None
        return (pace, per_token) if pace and per_token else None


class _Line:
    """One scenario: when each slot is free, and when what each person has running ends."""

    def __init__(self, slots: Sequence[SlotNow], until: Sequence[float]) -> None:
        self._free: dict[str, list[float]] = defaultdict(list)
        self._theirs: dict[int, list[float]] = defaultdict(list)
        for slot, seconds in zip(slots, until, strict=True):
            self._free[slot.model].append(seconds)
            if slot.running:
                heappush(self._theirs[slot.running.owner], seconds)
        for heap in self._free.values():
            heapify(heap)

    def begin(self, one: Waiter, work: _Expected, scenario: int) -> float:
        """Seconds until its first token; infinite without a slot that could answer."""
        free = self._free.get(one.model) or (min(self._free.values(), default=None) if not one.model else None)
        if free is None:
            return math.inf
        begins, theirs = free[0], self._theirs[one.owner]
        while theirs and theirs[0] <= begins:
            heappop(theirs)
        if len(theirs) >= settings.QUEUE_RUNNING_PER_PERSON:
            begins = heappop(theirs)
        first = begins + work.reading
        until = first + work.writing[scenario]
        heapreplace(free, until)
        heappush(theirs, until)
        return first


def _seconds_per_token(samples: Iterable[Sample]) -> Iterator[tuple[float, float]]:
    """Each with its number of tokens."""
    for one in samples:
        if one.read and one.reading and one.reading > 0:
            yield one.reading / one.read, one.read


def _remaining(slot: SlotNow, paces: _Paces) -> list[float]:
    """Seconds until the slot is free, by scenario."""
    if slot.running is None:
        return [1.0 if slot.busy else 0.0] * SCENARIOS
    running = slot.running
    expected = paces.of(slot.model, running.prompt, running.most, running.id.int, running)
    if expected is None:
        return [0.0] * SCENARIOS
    return [expected.reading + writing for writing in expected.writing]


def _within(ordered: Sequence[float], part: int) -> float:
    """The middle of that one of SCENARIOS equal parts: over all scenarios each comes once."""
    return ordered[(2 * part + 1) * len(ordered) // (2 * SCENARIOS)]


def _behind(played: Sequence[Waiter], ranges: Sequence[list[float]], others: Sequence[Waiter]) -> Iterator[list[float]]:
    """As far behind the last one played of their model as by their places."""
    last = {one.model: (one.place, seconds) for one, seconds in zip(played, ranges, strict=True)}
    for one in others:
        place, seconds = last.get(one.model, (1, []))
        yield [until * one.place / place for until in seconds]


def _rounded(seconds: Sequence[float]) -> Estimate | None:
    if not seconds or math.isinf(seconds[HIGH]):
        return None
    low, high = _step(seconds[LOW], math.floor), _step(seconds[HIGH], math.ceil)
    return Estimate(low, max(high, low + 1))


def _step(seconds: float, rounded: Any) -> int:
    """In steps that are coarser the longer it is: nobody is told a new number each second."""
    step = next(step for most, step in STEPS if seconds <= most)
    return int(rounded(seconds / step)) * step


def _rows(statement: str, about: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, about)
        return list(cursor.fetchall())
