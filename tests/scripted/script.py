"""What the scripted server says, how fast, and how it fails.

By default an answer is a fixed function of the last user message: its words depend on that text and their position
only, so a continued partial goes on exactly where it stopped, on any server. Asked "What was my first message?" it
answers with the text of the first user message it was sent. Anything else is a Script: from `server.script(…)`, or
written into the user's message as `[[tokens=200 rate=50 fault=drop after=10]]`.
"""

import hashlib
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from tests.scripted import tokens

Fault = Literal[
    "no_headers",  # the POST is never answered; its slot stays quiet
    "500", "503", "400",  # refused with llama-server's JSON error
    "html",  # a proxy's error page, status 502
    "json",  # status 200 and JSON where SSE was asked for
    "wrong_type",  # a right answer under Content-Type: text/plain
    "bad_json",  # after `after` tokens one event that is no JSON, then the rest
    "drop",  # after `after` tokens every connection of this answer is reset; generation goes on if it can be resumed
    "hang",  # after `after` tokens nothing more comes, the slot stays busy until it is cancelled
    "wedge",  # the same, and cancelling does not help
    "error",  # after `after` tokens an error event, then the end of the stream
    "end",  # after `after` tokens the stream just ends: no finish_reason, no [DONE]
]  # fmt: skip
FAULTS: tuple[str, ...] = get_args(Fault)

FIRST_MESSAGE_QUESTION = "what was my first message"
DEFAULT_TOKENS = 24
_DIRECTIVE = re.compile(r"\[\[(.*?)\]\]", re.DOTALL)
_WORD_LIST = (
    "amber anchor april basket beacon birch bridge bronze candle canyon cedar circle cloud copper coral "
    "cotton desert dragon ember falcon fern field forest fossil garden ginger glacier granite harbor "
    "hazel island ivory jasmine kettle ladder lagoon lantern lemon linen maple marble meadow mirror "
    "needle ocean olive orchid paper pebble pepper prairie quartz raven ribbon river saffron silver "
    "spruce summit thunder timber valley velvet willow "
)
_WORDS = _WORD_LIST.split()


@dataclass(frozen=True)
class Script:
    """One answer. Rates are tokens per second; None means the server's own; a `tokens` answer is default words."""

    text: str | None = None
    pieces: tuple[str, ...] | None = None  # the exact tokens, where `text` should not be split by the tokenizer
    tokens: int | None = None
    reasoning: str = ""
    rate: float | None = None
    prefill: float | None = None
    fault: Fault | None = None
    after: int = 0
    match: str = ""  # applies to requests whose last user message contains this
    times: int | None = None  # applies to so many requests; None: to all

    def __post_init__(self) -> None:
        if self.fault is not None and self.fault not in FAULTS:
            raise ValueError(f"no such fault: {self.fault}; there are {', '.join(FAULTS)}")


ScriptSource = Script | Callable[[Mapping[str, Any]], Script | None]


def script_from(values: Mapping[str, Any]) -> Script:
    """A Script from JSON or from a directive's words. Raises ValueError for a name or a value it does not know."""
    known = {field.name for field in fields(Script)}
    if unknown := set(values) - known:
        raise ValueError(f"not part of a script: {', '.join(sorted(unknown))}")
    numbers = {"tokens": int, "after": int, "times": int, "rate": float, "prefill": float, "pieces": tuple}
    return Script(**{name: numbers.get(name, str)(value) for name, value in values.items() if value is not None})


def directive(text: str) -> Script | None:
    """The script written into a user's message, if there is one."""
    found = _DIRECTIVE.search(text)
    if found is None:
        return None
    words = (word.partition("=") for word in shlex.split(found[1]))
    return script_from({name: value for name, _, value in words})


class Scripts:
    """The scripts a test asked for: a directive in the message goes first, then the newest that applies."""

    def __init__(self) -> None:
        self._sources: list[ScriptSource] = []

    def add(self, source: ScriptSource) -> None:
        self._sources.insert(0, source)

    def clear(self) -> None:
        self._sources.clear()

    def choose(self, body: Mapping[str, Any]) -> Script:
        asked = last_user_text(body.get("messages") or ())
        written = directive(asked)
        if written is not None:
            return written
        for index, source in enumerate(self._sources):
            script = self._applied(index, source, body, asked)
            if script is not None:
                return script
        return Script()

    def reading(self, prompt: str) -> Script:
        """How fast a raw prompt is read: as what a script says of those that contain its `match`."""
        speeds = (one.prefill for one in self._sources if isinstance(one, Script) and one.match in prompt and one.match)
        return Script(prefill=next(filter(None, speeds), None))

    def _applied(self, index: int, source: ScriptSource, body: Mapping[str, Any], asked: str) -> Script | None:
        if not isinstance(source, Script):
            return source(body)
        if source.match not in asked or source.times == 0:
            return None
        if source.times is not None:
            self._sources[index] = replace(source, times=source.times - 1)
        return source


def last_user_text(messages: Sequence[Mapping[str, Any]]) -> str:
    return next((tokens.text_of(m) for m in reversed(messages) if m.get("role") == "user"), "")


def first_user_text(messages: Sequence[Mapping[str, Any]]) -> str:
    return next((tokens.text_of(m) for m in messages if m.get("role") == "user"), "")


def word(seed: str, position: int) -> str:
    digest = hashlib.sha256(f"{seed}\0{position}".encode("utf-8", "surrogatepass")).digest()
    return _WORDS[int.from_bytes(digest[:4], "big") % len(_WORDS)]


def before_any(stop: Sequence[str], said: list[str]) -> list[str]:
    """What comes before the first of `stop`, of which nothing is sent."""
    text = "".join(said)
    ends = [text.index(word) for word in stop if word in text]
    return tokens.split(text[: min(ends)]) if ends else said


class Answer:
    """The tokens an answer consists of, by position; past its end (`ignore_eos`) it goes on with default words."""

    def __init__(self, script: Script, messages: Sequence[Mapping[str, Any]], stop: Sequence[str] = ()) -> None:
        self._seed = last_user_text(messages)
        said = list(script.pieces) if script.pieces is not None else self._said(script, messages)
        said = before_any(stop, said)
        thought = tokens.split(script.reasoning)
        self.pieces = [tokens.THINK, *thought, tokens.END_THINK, *said] if thought else said

    def _said(self, script: Script, messages: Sequence[Mapping[str, Any]]) -> list[str]:
        if script.text is not None:
            return tokens.split(script.text)
        if script.tokens is None and FIRST_MESSAGE_QUESTION in self._seed.lower():
            return tokens.split(f"Your first message was: {first_user_text(messages)}")
        return [self._word(position) for position in range(script.tokens or DEFAULT_TOKENS)]

    def _word(self, position: int) -> str:
        return ("" if position == 0 else " ") + word(self._seed, position)

    def token(self, position: int, *, ignore_eos: bool) -> str:
        if position < len(self.pieces):
            return self.pieces[position]
        return self._word(position) if ignore_eos else tokens.IM_END


def default_answer(user_text: str, count: int = DEFAULT_TOKENS) -> str:
    """What the scripted server answers to a message when nothing else was asked for."""
    return "".join(Answer(Script(tokens=count), [{"role": "user", "content": user_text}]).pieces)
