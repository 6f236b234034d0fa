"""What one client has been sent of each generation, so that nothing is sent twice and no hole goes unnoticed."""

import enum
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from uuid import UUID

from conversations.frames import Frame
from conversations.models import Generation

SILENCE = 1.0  # seconds without an event of a live generation until Postgres is asked

_LIVE = {status.value for status in Generation.LIVE}


class Fit(enum.Enum):
    """How an event joins what the client has."""

    NEXT = "next"
    OLD = "old"  # the client has it
    HOLE = "hole"  # something before it is missing


@dataclass(frozen=True, slots=True)
class Silent:
    """What the client has of a live generation; `waits`: it was told that it does not run yet."""

    conversation: str
    generation: UUID
    seq: int
    waits: bool = False
    place: int | None = None
    reason: str | None = None
    estimate: Frame | None = None


@dataclass(slots=True)
class _Told:
    conversation: str
    seq: int
    live: bool
    heard_at: float
    waits: bool = False  # `place` does not tell: a snapshot that is read while it begins has none
    place: int | None = None  # in the queue, why nothing moves there, and how long it takes: as it was told last
    reason: str | None = None
    estimate: Frame | None = None


class Following:
    """The generations one client follows. `clock` is monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: dict[str, _Told] = {}

    def knows(self, generation: str) -> bool:
        return generation in self._told

    def is_live(self, generation: str) -> bool:
        return generation in self._told and self._told[generation].live

    def begin(self, state: Frame) -> None:
        """The client was given this state of a generation (a `generation` object of a frame), whole."""
        live = state["status"] in _LIVE
        waits = state["status"] == Generation.Status.QUEUED
        told = _Told(state["conversation"], state["seq"], live, self._clock(), waits, state.get("place"))
        told.estimate = state.get("estimate")
        self._told[state["id"]] = told

    def begin_all(self, conversation: str, states: Iterable[Frame]) -> None:
        """The client was given a snapshot with these: any other of the conversation has ended, or is not shown."""
        for told in self._told.values():
            told.live = told.live and told.conversation != conversation
        for state in states:
            self.begin(state)

    def await_snapshot(self, generation: str, conversation: str) -> None:
        """The client has nothing of it yet, and Postgres could not be asked: whatever comes first leads to asking."""
        self._told[generation] = _Told(conversation, -1, True, self._clock())

    def judge(self, frame: Frame) -> Fit:
        """How `frame`, an event of a generation, fits; NEXT counts as sent."""
        told = self._told.get(frame["generation"])
        if told is None:
            return Fit.HOLE
        told.heard_at = self._clock()
        seq = frame.get("seq")
        if seq is None:  # its place or its prefill: the newest counts
            told.waits = "place" in frame
            told.place, told.reason, told.estimate = frame.get("place"), frame.get("reason"), frame.get("estimate")
            return Fit.NEXT if told.live else Fit.OLD
        if seq != told.seq + 1:
            return Fit.OLD if seq <= told.seq else Fit.HOLE
        told.seq, told.waits, told.place, told.reason, told.estimate = seq, False, None, None, None
        told.live = frame.get("status", Generation.Status.RUNNING) in _LIVE
        return Fit.NEXT

    def skip(self, frame: Frame) -> None:
        """If the snapshot did not show this event's generation (it is on another branch), count the event as sent."""
        told = self._told.get(frame["generation"])
        if told is None or told.seq < frame.get("seq", 0):
            live = frame.get("status", Generation.Status.RUNNING) in _LIVE
            self._told[frame["generation"]] = _Told(frame["conversation"], frame.get("seq", 0), live, self._clock())

    def silent(self) -> list[Silent]:
        """Live generations of which nothing was heard for SILENCE; each once a SILENCE.

        The last event can be lost and nothing after it would reveal that: so whoever waits asks.
        """
        now = self._clock()
        found = []
        for generation, told in self._told.items():
            if told.live and now - told.heard_at >= SILENCE:
                told.heard_at = now
                about = (told.waits, told.place, told.reason, told.estimate)
                found.append(Silent(told.conversation, UUID(generation), told.seq, *about))
        return found

    def forget(self, generation: str) -> None:
        self._told.pop(generation, None)

    def forget_conversation(self, conversation: str) -> None:
        self._told = {key: told for key, told in self._told.items() if told.conversation != conversation}
