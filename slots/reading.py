"""What servers say, read with suspicion: only what Postgres, JSON and msgpack can hold comes out of here.

One figure too large for a column, or one NUL, would end a worker's thread again and again wherever the turn goes.
"""

import http.client
import json
import math
from dataclasses import dataclass
from typing import Any

LONGEST_SENTENCE = 500  # code points of a server's own words; they are stored and shown
LARGEST = 2**31 - 1  # of what a server counts: Postgres's integer
LARGEST_FILE = 2**63 - 1  # bytes of one that it writes: Postgres's bigint
# What chat templates let a request decide about the model's thoughts; `chat_template_kwargs` sets it.
SWITCHES = ("enable_thinking", "reasoning_effort", "preserve_thinking", "clear_thinking")


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a stream; `end` is the offset of the byte after it."""

    end: int
    text: str = ""
    reasoning: str = ""
    progress: dict[str, int] | None = None  # total, cache, processed: model tokens
    finish_reason: str = ""
    usage: dict[str, Any] | None = None
    timings: dict[str, Any] | None = None
    done: bool = False


@dataclass(frozen=True, slots=True)
class Props:
    """What `/props` tells of the process."""

    boot: str  # random per process; empty on servers too old to say
    model: str
    total_slots: int
    n_ctx: int  # model tokens per slot
    model_path: str = ""
    sleeping: bool = False  # its model and every cache are freed until a request, or a look at /slots, wakes it
    switches: tuple[str, ...] = ()  # those of SWITCHES that its chat template reads


@dataclass(frozen=True, slots=True)
class Peek:
    """What an address answered that may be no llama-server's."""

    status: int
    headers: dict[str, str]  # names in lower case
    text: str  # the beginning of its body

    @property
    def json(self) -> Any:
        """None for what is no JSON."""
        try:
            return parsed(self.text.encode())
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class SlotState:
    """One slot in `/slots`. `task` and `tokens` stay after it went quiet; None if it never ran."""

    id: int
    busy: bool
    task: int | None
    tokens: int | None
    n_ctx: int | None = None


def plain(value: object) -> str:
    """A server's words without what Postgres and UTF-8 cannot hold."""
    return str(value).replace("\x00", "").encode(errors="replace").decode()


def count(value: object, largest: int = LARGEST) -> bool:
    """Whether it is a whole number that can be stored."""
    return type(value) is int and abs(value) <= largest


def figures(body: object) -> dict[str, Any] | None:
    """Those members that are numbers, and such as can be stored and sent."""
    if not isinstance(body, dict):
        return None
    return {
        name: value
        for name, value in body.items()
        if count(value) or (isinstance(value, float) and math.isfinite(value))
    }


def parsed(data: bytes) -> Any:
    """`data` read as JSON. Raises ValueError."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("nested without end") from error


def chunk(body: dict[str, Any], end: int) -> Event:
    """One event of a completion. Raises TypeError, KeyError, AttributeError or IndexError for what is none."""
    choices = body.get("choices") or [{}]
    delta = choices[0].get("delta") or {}
    progress = figures(body.get("prompt_progress"))
    return Event(
        end=end,
        text=_string(delta.get("content", choices[0].get("text"))),  # the latter of a raw completion
        reasoning=_string(delta.get("reasoning_content")),
        progress={name: int(progress[name]) for name in ("total", "cache", "processed")} if progress else None,
        finish_reason=plain(_string(choices[0].get("finish_reason")))[:LONGEST_SENTENCE],
        usage=figures(body.get("usage")),
        timings=figures(body.get("timings")),
    )


def _string(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def sentence(message: object) -> str:
    """A server's own words as one."""
    return f"{plain(message)[:LONGEST_SENTENCE].strip().rstrip('.')}."


def excerpt(data: bytes) -> str:
    """The beginning of what is not what it should be."""
    return f"“{' '.join(plain(data.decode(errors='replace')).split())[:80]}”"


def reason(error: BaseException) -> str:
    """The innermost cause, which is the one an operator can act on."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    if isinstance(error, http.client.IncompleteRead):
        return "it ended too early"  # its own words are Python's
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
