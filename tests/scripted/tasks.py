"""What the slots are asked to do, and what is heard of it."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.scripted.script import Answer, Script


@dataclass(frozen=True)
class Begun:
    """The slot has started on it: headers go out now."""


@dataclass(frozen=True)
class Progress:
    total: int
    cache: int
    processed: int
    time_ms: int


@dataclass(frozen=True)
class Token:
    piece: str


@dataclass(frozen=True)
class Finished:
    reason: str  # stop | length


@dataclass(frozen=True)
class Refused:
    """It never ran: an answer with this status and error object."""

    status: int
    error: dict[str, object]


@dataclass(frozen=True)
class Ended:
    """It stopped without having finished: cancelled, or told so by its script; with an error event or without."""

    error: str = ""


Event = Begun | Progress | Token | Finished | Refused | Ended


@dataclass(eq=False)
class Generation:
    """One completion on its way through a slot."""

    id_slot: int  # -1: any
    prompt: list[str]
    answer: Answer
    script: Script
    said: int = 0  # tokens of the answer that stand in the prompt already (continuation)
    max_tokens: int | None = None
    cache_prompt: bool = True
    ignore_eos: bool = False
    params: dict[str, object] = field(default_factory=dict)
    events: deque[Event] = field(default_factory=deque)
    bell: asyncio.Event = field(default_factory=asyncio.Event)  # rung for every event, and by whoever wants it to stop
    id_task: int = -1
    cached: int = 0
    processed: int = 0  # tokens of the prompt evaluated so far
    generated: list[str] = field(default_factory=list)
    started: float = 0.0
    first_token: float = 0.0
    due: float = 0.0  # when the next token may come
    on_start: Callable[[int], None] = lambda slot: None

    def tell(self, event: Event) -> None:
        self.events.append(event)
        self.bell.set()

    @property
    def prefilling(self) -> bool:
        return self.cached + self.processed < len(self.prompt)


@dataclass(eq=False)
class SlotAction:
    slot: int
    act: Callable[["Slot"], dict[str, object]]
    done: "asyncio.Future[dict[str, object]]"


@dataclass(eq=False)
class Cancel:
    generation: Generation


Task = Generation | SlotAction | Cancel


@dataclass(eq=False)
class Slot:
    id: int
    tokens: list[str] = field(default_factory=list)
    queued: int = 0  # prompt tokens in the running batch: GET /slots counts them already
    running: Generation | None = None
    last: Generation | None = None
    last_used: float = -1.0

    def shown(self, n_ctx: int) -> dict[str, object]:
        """This slot as GET /slots shows it: a slot that never ran, even if restored, shows no numbers."""
        shown: dict[str, object] = {
            "id": self.id, "n_ctx": n_ctx, "speculative": False, "is_processing": self.running is not None,
        }  # fmt: skip
        if self.last is None:
            return shown
        run = self.running
        decoded = len(run.generated) if run else 0
        return shown | {
            "id_task": self.last.id_task,
            "n_prompt_tokens": len(self.tokens) + self.queued,
            "n_prompt_tokens_processed": run.processed if run else 0,
            "n_prompt_tokens_cache": run.cached if run else 0,
            "params": self.last.params,
            "next_token": [
                {"has_next_token": run is not None, "has_new_line": False, "n_remain": -1, "n_decoded": decoded},
            ],
        }
