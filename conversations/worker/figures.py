"""What a generation cost: counted while it runs, corrected by what the server says at its end."""

import time
from typing import Any

from conversations.claims import Claim
from slots.reading import Event

REPEATED = 32  # code points: a first delta that begins with so long an answer so far repeats it (llama.cpp b11434)


class Figures:
    """Of one request, and of what was written before it."""

    def __init__(self, claim: Claim) -> None:
        self.finish_reason = ""
        self.tokens_before = claim.tokens - (claim.stream_tokens if claim.grant.taken_over else 0)
        self._claim = claim
        self._seen = claim.tokens - self.tokens_before
        self._began = time.monotonic()
        self._ttft_ms: int | None = None
        self._thinking: list[float] = []  # when it began to think, and when it was last heard to
        self._writing: list[float] = []  # the same of both, thoughts and text
        self._reading: list[float] = []  # when it began to read the prompt, and when it was last heard to
        self._so_far = ""
        self._progress: dict[str, int] = {}
        self._usage: dict[str, Any] = {}
        self._timings: dict[str, Any] = {}

    def begin(self, messages: list[dict[str, str]]) -> None:
        self._so_far = messages[-1]["content"] if messages and messages[-1]["role"] == "assistant" else ""

    def fresh(self, words: str) -> str:
        """`words` without the answer so far, which some servers repeat in the first delta of a continuation."""
        so_far, self._so_far = self._so_far, ""
        return words[len(so_far) :] if len(so_far) >= REPEATED and words.startswith(so_far) else words

    def take(self, event: Event) -> None:
        if event.text or event.reasoning:
            self._seen += 1
            self._writing = [*self._writing[:1], time.monotonic()]
            if self._ttft_ms is None and not self._claim.seq:
                self._ttft_ms = self._claim.queue_ms + round((time.monotonic() - self._began) * 1000)
        if event.reasoning:
            self._thinking = [*self._thinking[:1], time.monotonic()]
        if event.progress:
            self._reading = [*self._reading[:1], time.monotonic()]
        self._progress = event.progress or self._progress
        self._usage = event.usage or self._usage
        self._timings = event.timings or self._timings
        self.finish_reason = event.finish_reason or self.finish_reason

    @property
    def written(self) -> bool:
        """Whether there is any of the answer, of this attempt, one before, or what it goes on with."""
        there = self._claim.text_length or self._claim.reasoning_length
        return bool(there or self.tokens_before + self._seen)

    @property
    def prompt_tokens(self) -> int | None:
        """Of the whole prompt; None when the server has not told."""
        told: int | None = self._usage.get("prompt_tokens", self._progress.get("total"))
        return told

    def usage(self) -> dict[str, Any]:
        """Of all its requests as one: what was written before this one, and is in its prompt, counts as written."""
        answered, told = self._usage.get("completion_tokens", self._seen), self.prompt_tokens
        asked = None if told is None else max(0, told - self.tokens_before)
        return {"prompt_tokens": asked, "completion_tokens": self.tokens_before + answered}

    def timings(self, replay_cause: str | None) -> dict[str, Any]:
        """`prompt_n` tokens were read in `prompt_ms`, `cache_n` were in the cache already."""
        read = self._progress["processed"] - self._progress["cache"] if self._progress else None
        heard_ms = round((self._reading[-1] - self._reading[0]) * 1000, 1) if self._reading else None
        return {
            "queue_ms": self._claim.queue_ms,
            "ttft_ms": self._ttft_ms,
            "prompt_n": self._timings.get("prompt_n", read),
            "prompt_ms": self._timings.get("prompt_ms", heard_ms),
            "cache_n": self._timings.get("cache_n", self._progress.get("cache")),
            "tokens_per_second": self._timings.get("predicted_per_second", self._pace),
            "thinking_ms": self._thinking_ms,
            "replay_cause": replay_cause,
        }

    @property
    def _pace(self) -> float | None:
        """As heard; None of a stream that was taken over, of which the beginning came at once."""
        if self._claim.grant.taken_over or len(self._writing) < 2:
            return None
        seconds = self._writing[-1] - self._writing[0]
        return round((self._seen - 1) / seconds, 2) if seconds else None

    @property
    def _thinking_ms(self) -> int | None:
        """From the first of its thoughts to the last; None if it had none, or had begun before."""
        if self._claim.reasoning_length or not self._thinking:
            return None
        return round((self._thinking[-1] - self._thinking[0]) * 1000)
