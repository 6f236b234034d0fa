"""What the scripted server was asked, for a test to look at afterwards; outlives a restart of the server."""

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.scripted.script import last_user_text


@dataclass(eq=False)
class Record:
    """One completion. Times are seconds of the monotonic clock; None: it has not come to that."""

    number: int
    id_slot: object  # as it was sent
    stream_id: str | None
    body: Mapping[str, Any]
    arrived: float
    slot: int | None = None  # which slot served it
    started: float | None = None
    ended: float | None = None
    deferred: bool = False
    outcome: str | None = None  # stop | length | cancelled | refused | error | ended
    prompt_n: int = 0
    cache_n: int = 0
    predicted_n: int = 0
    pieces: list[str] = field(default_factory=list)  # tokens generated
    raw: bool = False

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def messages(self) -> list[dict[str, Any]]:
        return list(self.body.get("messages") or ())

    @property
    def asked(self) -> str:
        return last_user_text(self.messages)


@dataclass
class Journal:
    """`most_at_once[slot]` is the largest number of requests that named a slot and were unfinished at one moment."""

    requests: list[Record] = field(default_factory=list)
    raw: list[Record] = field(default_factory=list)  # /v1/completions: a probe's canaries, counted nowhere else
    calls: list[str] = field(default_factory=list)  # every request as "METHOD /path?query", in order of arrival
    most_at_once: dict[int, int] = field(default_factory=dict)
    most_deferred: int = 0
    _open: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))

    def arrived(self, body: Mapping[str, Any], stream_id: str | None, id_slot: int) -> Record:
        raw = "prompt" in body
        number = len(self.requests) + len(self.raw)
        record = Record(number, body.get("id_slot"), stream_id, body, time.monotonic(), raw=raw)
        (self.raw if raw else self.requests).append(record)
        if id_slot != -1 and not raw:
            self._count(id_slot, record)
        return record

    def started(self, record: Record, slot: int) -> None:
        record.slot, record.started = slot, time.monotonic()
        if not record.raw:
            self._count(slot, record)

    def _count(self, slot: int, record: Record) -> None:
        self._open[slot].add(record.number)
        self.most_at_once[slot] = max(self.most_at_once.get(slot, 0), len(self._open[slot]))

    def waiting(self, count: int) -> None:
        self.most_deferred = max(self.most_deferred, count)

    def ended(self, record: Record, outcome: str) -> None:
        record.ended, record.outcome = time.monotonic(), outcome
        for numbers in self._open.values():
            numbers.discard(record.number)

    def close(self) -> None:
        """The server has gone: whatever was unfinished has ended with it."""
        for record in (*self.requests, *self.raw):
            if record.ended is None:
                self.ended(record, "ended")

    def clear(self) -> None:
        self.requests.clear()
        self.raw.clear()
        self.calls.clear()
        self.most_at_once.clear()
        self.most_deferred = 0

    def as_json(self) -> dict[str, object]:
        return {
            "requests": [asdict(record) | {"text": record.text} for record in self.requests],
            "calls": list(self.calls),
            "most_at_once": {str(slot): count for slot, count in self.most_at_once.items()},
            "most_deferred": self.most_deferred,
        }
