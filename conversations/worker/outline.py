"""An outline of what a slot's cache holds, message by message: noted when a turn ends, compared when the next begins.

Of each message a digest and, for those that ended a prompt, how many model tokens that prompt had: up to there no
template writes anything otherwise. So it is known what must be found again, and why something is not.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Self

# Tokens with which a template opens an answer, and which it may write otherwise in history (3 in ChatML, 8 with an
# empty thought): so much less than a prompt had may be found again.
OPENING = 16
SMALL = 32  # tokens of an answer that are read again without a word about it

Messages = Sequence[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Outline:
    """`prompt`: (digest, tokens of the prompt that ended there) of each message; `answer`: what followed it."""

    prompt: tuple[tuple[str, int | None], ...] = ()
    answer: str | None = None

    @classmethod
    def read(cls, noted: Any) -> Self:
        """From what `noted` made."""
        if not noted:
            return cls()
        return cls(tuple((digest, tokens) for digest, tokens in noted["prompt"]), noted["answer"])

    def noted(self) -> dict[str, Any]:
        return {"prompt": self.prompt, "answer": self.answer}

    def followed_by(self, asked: Messages, answer: str, prompt_tokens: int | None, held: int) -> Self:
        """After `asked` was answered, `held` tokens in the cache; `prompt_tokens` None where they are not known.

        Those of a continuation have the answer so far in them, and tell nothing of where it began.
        """
        questions = _questions(asked)
        known = self._common(questions)
        before = [tokens for _, tokens in self.prompt[:known]] + [None] * (len(questions) - known)
        if before and prompt_tokens is not None and len(questions) == len(asked):
            before[-1] = min(prompt_tokens, held)
        return type(self)(tuple(zip(map(_digest, questions), before, strict=True)), _answer(answer))

    def cause(self, asked: Messages, cache: int, held: int) -> str | None:
        """Why no more than `cache` of the `held` tokens were found again for `asked`; None when that is as it must be.

        `cache_lost`: the server has less than both prompts begin with. `template`: the last answer is written otherwise
        in history, from its beginning. `branch`: messages are read again that came after another message than the one
        in the cache. None also where the model chose tokens that its tokenizer does not: answers are read again as
        text, so the cache ends there (one of five of 150 tokens, SmolLM2 at temperature 0.8).
        """
        if not self.prompt:
            return None
        asked, known = _questions(asked), self._common(asked)
        if cache < max((tokens or 0 for _, tokens in self.prompt[:known]), default=0) - OPENING:
            return "cache_lost"
        following = asked[known:]
        if known == len(self.prompt) and following and _digest(following[0]) == self.answer:
            begins = self.prompt[-1][1]
            return "template" if begins and cache <= begins + OPENING and held - cache >= SMALL else None
        return "branch" if following[:-1] else None

    def holds(self, asked: Messages) -> int:
        """How many of the first messages of `asked` the cache holds, the answer to the last prompt among them."""
        known = self._common(asked)
        following = asked[known : known + 1]
        return known + (known == len(self.prompt) > 0 and bool(following) and _digest(following[0]) == self.answer)

    def _common(self, asked: Messages) -> int:
        pairs = zip(self.prompt, asked, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0][0] == _digest(pair[1]), pairs))


def _questions(asked: Messages) -> Messages:
    """Without the answer so far, which a continuation ends with."""
    return asked[:-1] if asked and asked[-1]["role"] == "assistant" else asked


def _answer(text: str) -> str | None:
    return _digest({"role": "assistant", "content": text}) if text else None


def _digest(message: dict[str, str]) -> str:
    said = f"{message['role']}\0{message['content']}".encode()
    return hashlib.blake2b(said, digest_size=8).hexdigest()
