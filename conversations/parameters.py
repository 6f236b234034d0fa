"""How an answer is made: every parameter that a person can set, with its range and its meaning.

The one list of them: the API checks by it, the page asks by it, and nothing else ever reaches a llama-server. What is
not set is not sent, so that the server's own flags decide. Ranges are where llama.cpp's samplers do something sensible
(common/common.h, b11434), not where they stop to work.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from django.db.models import F, Func, JSONField, Value

from conversations import text
from conversations.json_text import kind

DEFAULT_MAX_TOKENS = 512
MOST_STOPS, LONGEST_STOP = 8, 100
MOST_NAMED = 5  # of names that are none
LONGEST_SHOWN = 40  # characters of a wrong value
RANDOM_SEED = 2**32 - 1  # llama.cpp's LLAMA_DEFAULT_SEED: another one each time

# What a chat template may ask for, and what a person may then choose.
ENABLE_THINKING, REASONING_EFFORT = "enable_thinking", "reasoning_effort"
EFFORTS = ("low", "medium", "high")


class Wrong(ValueError):
    """A value that a parameter cannot have; says what it is and what it may be."""


@dataclass(frozen=True, slots=True)
class Number:
    """From `low` to `high`; `default` is llama-server's own unless its flags say otherwise."""

    name: str
    label: str
    low: float
    high: float
    default: str
    meaning: str
    whole: bool = False
    kind: ClassVar[str] = "number"

    def read(self, value: Any) -> float:
        """`value` as it is stored; 40.0 is 40, as JSON has one kind of number. Raises Wrong."""
        allowed = self.range
        if isinstance(value, bool) or not isinstance(value, int | float) or (self.whole and value % 1):
            a = "a whole number" if self.whole else "a number"
            raise Wrong(f"{self.name} is {shown(value)}: it must be {a} {allowed}.")
        if not self.low <= value <= self.high:  # nor is NaN
            raise Wrong(f"{self.name} is {shown(value)}: it may be {allowed}.")
        return int(value) if self.whole else value

    @property
    def range(self) -> str:
        return f"from {self.low:,} to {self.high:,}"

    @property
    def schema(self) -> dict[str, Any]:
        type_ = "integer" if self.whole else "number"
        return {"type": type_, "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, slots=True)
class Strings:
    """At most `most`, none empty, none longer than `longest` code points."""

    name: str
    label: str
    most: int
    longest: int
    meaning: str
    default: str = "none"
    kind: ClassVar[str] = "strings"

    def read(self, value: Any) -> list[str]:
        """Raises Wrong."""
        if not isinstance(value, list):
            raise Wrong(f"{self.name} is {shown(value)}: it must be a list of strings.")
        if len(value) > self.most:
            raise Wrong(f"{self.name} has {len(value):,} strings: it may have up to {self.most}.")
        return [self._one(one) for one in value]

    def _one(self, one: Any) -> str:
        words = text.clean(one) if isinstance(one, str) else None
        if words is None:
            raise Wrong(f"{self.name} has {shown(one)} in it: it must be a list of strings.")
        if not 1 <= len(words) <= self.longest:
            raise Wrong(
                f"{self.name} has a string of {len(words):,} characters: each may have from 1 to {self.longest}."
            )
        return words

    @property
    def schema(self) -> dict[str, Any]:
        one = {"type": "string", "minLength": 1, "maxLength": self.longest}
        return {"type": "array", "items": one, "maxItems": self.most}


@dataclass(frozen=True, slots=True)
class Choice:
    """One of `options`; which of them a model has, its chat template says."""

    name: str
    label: str
    options: tuple[str, ...]
    meaning: str
    default: str = "the model's own"
    kind: ClassVar[str] = "choice"

    def read(self, value: Any) -> str:
        """Raises Wrong."""
        if value not in self.options:
            raise Wrong(f"{self.name} is {shown(value)}: it may be {listed(self.options, 'or')}.")
        return str(value)

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.options)}


Parameter = Number | Strings | Choice

THINKING = Choice(
    "thinking", "Thinking", ("on", "off", *EFFORTS),
    "Whether the model thinks before it answers, or how much; where its chat template has it.",
)  # fmt: skip
PARAMETERS: tuple[Parameter, ...] = (
    Number("temperature", "Temperature", 0, 2, "0.8", "How freely words are chosen: 0 is always the likeliest."),
    Number("top_p", "Top-p", 0, 1, "0.95", "Only the likeliest words that together have this probability; 1: all."),
    Number("top_k", "Top-k", 0, 1000, "40", "Only so many of the likeliest words; 0: all.", whole=True),
    Number("min_p", "Min-p", 0, 1, "0.05", "Only words at least this likely beside the likeliest one; 0: all."),
    Number("repeat_penalty", "Repeat penalty", 0.5, 2, "1", "Above 1 makes words that were just said less likely."),
    Number("max_tokens", "Longest answer", 1, 8192, str(DEFAULT_MAX_TOKENS), "Model tokens after which an answer ends.",
           whole=True),
    Number("seed", "Seed", 0, RANDOM_SEED - 1, "random",
           "Makes chance repeatable as far as the server does: after a replay an answer may still differ.",
           whole=True),
    THINKING,
    Strings("stop", "Stop at", MOST_STOPS, LONGEST_STOP, "An answer ends before any of these."),
)  # fmt: skip
BY_NAME: Mapping[str, Parameter] = {parameter.name: parameter for parameter in PARAMETERS}
SCHEMA = {
    "type": "object",
    "properties": {
        name: {**one.schema, "nullable": True, "description": f"{one.meaning} Unset: {one.default}."}
        for name, one in BY_NAME.items()
    },
    "additionalProperties": False,
}


def read(given: Mapping[Any, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """What of `given` can be set (None: back to the server's default), and what is wrong with the rest, by name.

    What is wrong with names that are none is under "".
    """
    good: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    for name, value in given.items():
        if name in BY_NAME:
            try:
                good[name] = None if value is None else BY_NAME[name].read(value)
            except Wrong as error:
                wrong[name] = str(error)
    if unknown := [shown(str(name)) for name in given if name not in BY_NAME]:
        are = "are no parameters" if len(unknown) > 1 else "is no parameter"
        wrong[""] = f"{listed(unknown[:MOST_NAMED])} {are}; there are: {', '.join(BY_NAME)}."
    return good, wrong


def without_nulls(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """For what has no parameters yet: null is the server's default, which is not to be set."""
    return {name: value for name, value in (given or {}).items() if value is not None}


def merged(given: Mapping[str, Any] | None) -> Func | dict[str, Any]:
    """For an update of `params`: those given over those there are, null takes one away and None all (RFC 7396)."""
    if given is None:
        return {}
    changes = Value(dict(given), output_field=JSONField())
    return Func(F("params"), changes, template="jsonb_strip_nulls(%(expressions)s)", arg_joiner=" || ")


def thinking_of(switches: Iterable[str]) -> list[str]:
    """What `thinking` may be for a model whose template has these switches; empty where it has none."""
    has = set(switches)
    onoff = ("on", "off") if ENABLE_THINKING in has else ()
    return [*onoff, *(EFFORTS if REASONING_EFFORT in has else ())]


def why_not_thinking(value: str, model: str, offered: Sequence[str]) -> str | None:
    """A sentence when `thinking` cannot be `value` with `model` ("": any that is served); None when it can."""
    if value in offered:
        return None
    who = f"the model {model!r}" if model else "no model that is served"
    if not offered:
        lacks = f"{who} has no such switch in its chat template" if model else f"{who} has such a switch"
        return f"thinking is {shown(value)}: {lacks}; leave it unset."
    return f"thinking is {shown(value)}: with {who if model else 'what is served'} it may be {listed(offered, 'or')}."


def listed(names: Sequence[str], last: str = "and") -> str:
    """ "a, b and c" """
    *before, end = names
    return f"{', '.join(before)} {last} {end}" if before else end


def shown(value: Any) -> str:
    """A value in a sentence: what it is, or what kind of thing if it is a longer one."""
    if value is None or isinstance(value, list | dict):
        return kind(value)
    said = _number(value) if isinstance(value, int | float) else f"“{text.clean(str(value))}”"
    return said if len(said) <= LONGEST_SHOWN else f"{said[: LONGEST_SHOWN - 1]}…"


def _number(value: float) -> str:
    try:
        return json.dumps(value)
    except ValueError:  # Python writes no integer of more than 4,300 digits
        return "a number of thousands of digits"
