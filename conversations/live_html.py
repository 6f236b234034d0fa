"""When a socket is sent the answers being written as HTML, and how much of it.

At most ten times a second per answer, less often where rendering takes long or much is sent, and nothing while nothing
changes. The text is that of the events which the socket was sent, so HTML never gets ahead of them. All sockets of a
process are due at the same moments: what is made for one serves the others (`conversations.rendered`).
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from conversations import frames
from conversations.frames import Frame
from conversations.models import Generation, Message

SHORTEST = 0.1  # seconds between two renderings of an answer
LONGEST = 3.2
SHARE = 0.1  # of a core
BYTES_PER_SECOND = 300_000
AGAIN = 1.0  # seconds until the next try while Postgres is away

_LIVE = {status.value for status in Generation.LIVE}


@dataclass(frozen=True, slots=True)
class Job:
    """A text to be rendered now; `final` once it will not change any more."""

    generation: str
    message: UUID
    text: str
    final: bool
    began_at: float


@dataclass(slots=True)
class _Answer:
    conversation: str
    message: str
    seq: int
    text: str
    live: bool
    shown: list[str]
    due: float | None = None
    not_before: float = field(default=-math.inf)


class LiveHtml:
    """The answers that one socket shows as HTML. `clock` is monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wanted: set[str] = set()
        self._answers: dict[str, _Answer] = {}
        self._changed = asyncio.Event()

    def follow(self, conversation: str, wanted: bool) -> None:
        """A snapshot of it is about to be sent, as HTML if `wanted`."""
        self.forget(conversation)
        if wanted:
            self._wanted.add(conversation)

    def forget(self, conversation: str) -> None:
        self._wanted.discard(conversation)
        self._answers = {key: one for key, one in self._answers.items() if one.conversation != conversation}

    def wanted(self, conversation: str) -> bool:
        return conversation in self._wanted

    def begin(self, message: Frame) -> None:
        """The socket was sent this message whole, as HTML if it carries `html`."""
        state = message["generation"]
        if message["role"] != Message.Role.ASSISTANT or not state or state["conversation"] not in self._wanted:
            return
        live = state["status"] in _LIVE
        # What wrote it before has nothing to show any more: this one goes on from there.
        self._answers = {
            key: one for key, one in self._answers.items() if one.message != message["id"] or key == state["id"]
        }
        answer = _Answer(
            state["conversation"], message["id"], state["seq"], message["text"], live, message.get("html") or []
        )
        if "html" in message and not live:
            self._answers.pop(state["id"], None)
            return
        self._answers[state["id"]] = answer
        if "html" not in message and not (live and not answer.text):
            self._due(answer, self._clock())

    def hear(self, frame: Frame) -> None:
        """The socket was sent this event."""
        answer = self._answers.get(frame.get("generation", ""))
        if answer is None or "seq" not in frame:
            return
        answer.seq = frame["seq"]
        if frame["type"] != "generation.delta":
            answer.live = False
            self._due(answer, self._clock())
        elif frame["part"] == "text":
            answer.text += frame["text"]
            if answer.due is None:
                self._due(answer, max(self._clock(), answer.not_before))

    def due_in(self) -> float | None:
        """Seconds until something is to be rendered; None while there is nothing."""
        due = [answer.due for answer in self._answers.values() if answer.due is not None]
        return max(0.0, min(due) - self._clock()) if due else None

    async def wait(self) -> None:
        """Until something is to be rendered."""
        while (seconds := self.due_in()) is None or seconds > 0:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), seconds)

    def take(self) -> list[Job]:
        """What is to be rendered now."""
        now = self._clock()
        return [
            Job(generation, UUID(answer.message), answer.text, not answer.live, now)
            for generation, answer in self._answers.items()
            if answer.due is not None and answer.due <= now
        ]

    def done(self, job: Job, blocks: list[str]) -> Frame | None:
        """The frame that shows `blocks`; None when they are shown already."""
        answer = self._answers[job.generation]
        keep = _same(answer.shown, blocks)
        if job.final:
            del self._answers[job.generation]
        elif keep == len(blocks) == len(answer.shown):
            self._pace(answer, job, 0)
            return None
        else:
            self._pace(answer, job, sum(map(len, blocks[keep:])))
        answer.shown = blocks
        return frames.html(
            UUID(answer.conversation), UUID(job.generation), job.message, answer.seq, keep, blocks[keep:], job.final
        )

    def put_off(self, job: Job) -> None:
        """It could not be rendered: try again in a while."""
        self._due(self._answers[job.generation], self._clock() + AGAIN)

    def _due(self, answer: _Answer, at: float) -> None:
        answer.due = at
        self._changed.set()

    def _pace(self, answer: _Answer, job: Job, size: int) -> None:
        """Nothing is due until more comes, and then not too soon."""
        seconds = max(SHORTEST, (self._clock() - job.began_at) / SHARE, size / BYTES_PER_SECOND)
        interval = min(LONGEST, SHORTEST * 2 ** math.ceil(math.log2(seconds / SHORTEST)))
        # Multiples of the interval, which are the same in every socket, counted from when it was due: not a moment
        # later each time.
        due = answer.due if answer.due is not None else job.began_at
        began = due if job.began_at - due < interval else job.began_at
        answer.not_before = math.ceil((began + interval) / interval - 1e-6) * interval
        answer.due = None


def _same(shown: list[str], blocks: list[str]) -> int:
    """How many of the first blocks are the same."""
    pairs = enumerate(zip(shown, blocks, strict=False))
    return next((at for at, (old, new) in pairs if old != new), min(len(shown), len(blocks)))
