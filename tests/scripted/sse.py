"""The bytes of a streamed chat answer, in llama-server's order: progress, role, pieces, finish, usage, [DONE]."""

import secrets
import time
from collections.abc import Mapping
from typing import Any

from tests.scripted import tokens
from tests.scripted.tasks import Begun, Ended, Event, Finished, Generation, Progress, Refused, Token
from tests.scripted.web import dump

DONE = b"data: [DONE]\n\n"
FINGERPRINT = "b0-unknown"


def event(value: object) -> bytes:
    return b"data: " + dump(value) + b"\n\n"


def timings(run: Generation) -> dict[str, object]:
    now = time.monotonic()
    prompt_ms = max(0.001, (run.first_token - run.started) * 1000)
    predicted_ms = max(0.001, (now - run.first_token) * 1000)
    evaluated, predicted = len(run.prompt) - run.cached, len(run.generated)
    return {
        "cache_n": run.cached,
        "prompt_n": evaluated,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / evaluated,
        "prompt_per_second": evaluated / prompt_ms * 1000,
        "predicted_n": predicted,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_ms / max(1, predicted),
        "predicted_per_second": predicted / predicted_ms * 1000,
    }


def usage(run: Generation) -> dict[str, object]:
    return {
        "completion_tokens": len(run.generated),
        "prompt_tokens": len(run.prompt),
        "total_tokens": len(run.prompt) + len(run.generated),
        "prompt_tokens_details": {"cached_tokens": run.cached},
    }


class Parts:
    """Which part of an answer a token belongs to: what stands between <think> and </think> is reasoning."""

    def __init__(self, before: str = "") -> None:
        self.thinking = before.rfind(tokens.THINK) > before.rfind(tokens.END_THINK)

    def delta(self, piece: str) -> dict[str, str] | None:
        if piece in (tokens.THINK, tokens.END_THINK):
            self.thinking = piece == tokens.THINK
            return None
        if piece == tokens.IM_END:
            return None
        return {"reasoning_content": piece} if self.thinking else {"content": piece}


class CompletionStream:
    """Turns a generation's events into the bytes of its stream."""

    def __init__(self, run: Generation, body: Mapping[str, Any], model: str, partial: str = "") -> None:
        self._run, self._parts = run, Parts(partial)
        self._progress = body.get("return_progress") is True
        self._usage = bool((body.get("stream_options") or {}).get("include_usage"))
        self._begun = False
        self.tells = True  # how much was reused
        self._envelope = {
            "created": int(time.time()), "id": f"chatcmpl-{secrets.token_hex(16)}", "model": model,
            "system_fingerprint": FINGERPRINT, "object": "chat.completion.chunk",
        }  # fmt: skip

    def encode(self, happened: Event) -> bytes:
        """The bytes for one event; none for what the client does not get to see."""
        match happened:
            case Progress():
                return self._role({"prompt_progress": vars(happened)}) if self._progress and self.tells else b""
            case Token(piece):
                return self._opening() + self._delta(self._parts.delta(piece))
            case Finished(reason):
                return self._closing(reason)
            case Ended(error) if error:
                return event({"error": {"code": 500, "message": error, "type": "server_error"}})
            case Begun() | Ended() | Refused():
                return b""

    def _choice(self, delta: Mapping[str, object], finish: str | None = None, more: Mapping[str, object] = {}) -> bytes:
        choice = {"finish_reason": finish, "index": 0, "delta": delta}
        return event({"choices": [choice], **self._envelope, **more})

    def _role(self, more: Mapping[str, object] = {}) -> bytes:
        return self._choice({"role": "assistant", "content": None}, more=more)

    def _opening(self) -> bytes:
        opening = b"" if self._begun else self._role()
        self._begun = True
        return opening

    def _delta(self, delta: Mapping[str, object] | None) -> bytes:
        return self._choice(delta) if delta else b""

    def _closing(self, reason: str) -> bytes:
        measured = {"timings": timings(self._run)}
        if not self._usage:
            return self._choice({}, reason, measured) + DONE
        totals = {"choices": [], **self._envelope, "usage": usage(self._run), **measured}
        return self._choice({}, reason) + event(totals) + DONE


class ChatStream(CompletionStream):
    """For /v1/chat/completions."""


class RawStream(CompletionStream):
    """The same for /v1/completions: text in place of deltas, and figures with the last piece."""

    def __init__(self, run: Generation, body: Mapping[str, Any], model: str, partial: str = "") -> None:
        super().__init__(run, body, model, partial)
        self._envelope["object"] = "text_completion"
        self._begun = True  # there are no roles

    def _choice(self, delta: Mapping[str, object], finish: str | None = None, more: Mapping[str, object] = {}) -> bytes:
        choice = {"text": delta.get("content") or "", "index": 0, "logprobs": None, "finish_reason": finish}
        return event({"choices": [choice], **self._envelope, **more})

    def _closing(self, reason: str) -> bytes:
        measured = timings(self._run)
        if not self.tells:
            del measured["cache_n"]
        return self._choice({}, reason, {"usage": usage(self._run), "timings": measured}) + DONE


def whole(run: Generation, reason: str, model: str, partial: str) -> dict[str, object]:
    """The same answer in one JSON object; as in llama-server its text includes what it continued."""
    parts = Parts()
    said = {"content": "", "reasoning_content": ""}
    for piece in [*tokens.split(partial), *run.generated]:
        for name, text in (parts.delta(piece) or {}).items():
            said[name] += text
    message = {"role": "assistant", **{name: text for name, text in said.items() if text or name == "content"}}
    return {
        "choices": [{"finish_reason": reason, "index": 0, "message": message}],
        "created": int(time.time()), "model": model, "system_fingerprint": FINGERPRINT,
        "object": "chat.completion", "usage": usage(run), "id": f"chatcmpl-{secrets.token_hex(16)}",
        "timings": timings(run),
    }  # fmt: skip
