"""What servers say, read with suspicion: only what Postgres, JSON and msgpack can hold comes out of here.

One figure too large for a column, or one NUL, would end a worker's thread again and again wherever the turn goes.
"""

import json
import math
from dataclasses import dataclass
from typing import Any

LONGEST_SENTENCE = 500  # code points of a server's own words; they are stored and shown
LARGEST = 2**31 - 1  # of what a server counts: Postgres's integer


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


def plain(value: object) -> str:
    """A server's words without what Postgres and UTF-8 cannot hold."""
    return str(value).replace("\x00", "").encode(errors="replace").decode()


def count(value: object) -> bool:
    """Whether it is a whole number that can be stored."""
    return type(value) is int and abs(value) <= LARGEST


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
