"""An outline of what a slot's cache holds, message by message: noted when a turn ends, compared when the next begins.

Of each message a digest and, for those that ended a prompt, how many model tokens that prompt had: up to there no
template writes anything otherwise. So it is known what must be found again, and why something is not.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from types import MappingProxyType
from typing import Any, Self

# Tokens with which a template opens an answer, and which it may write otherwise in history (3 in ChatML, 8 with an
# empty thought): so much less than a prompt had may be found again.
OPENING = 16
SMALL = 32  # tokens of an answer that are read again without a word about it

Message = Mapping[str, str]
Messages = Sequence[Message]
Decided = Mapping[str, Any]  # of what the template lets a request decide
NOTHING: Decided = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Outline:
    """`prompt`: (digest, tokens of the prompt that ended there) of each message; `answer`: what followed it.

    `settings`: of what a person set that prompts are written by. None: not known. `held`: tokens of all that, where
    more was read behind it, which is no part of the conversation. `opened`: the id of the message behind which there
    is nothing more to be read before there is a question.
    """

    prompt: tuple[tuple[str, int | None], ...] = ()
    answer: str | None = None
    settings: str | None = None
    held: int | None = None
    opened: str | None = None

    @classmethod
    def read(cls, noted: Any) -> Self:
        """From what `noted` made."""
        if not noted:
            return cls()
        prompt = tuple((digest, tokens) for digest, tokens in noted["prompt"])
        return cls(prompt, noted["answer"], noted.get("settings"), noted.get("held"), noted.get("opened"))

    def noted(self) -> dict[str, Any]:
        behind = {"held": self.held, "opened": self.opened}
        told = {name: value for name, value in behind.items() if value is not None}
        return {"prompt": self.prompt, "answer": self.answer, "settings": self.settings, **told}

    def in_front(self, held: int) -> Self:
        """The same of a cache that holds it in its first `held` tokens, and then something else."""
        return replace(self, held=held if self.held is None else min(held, self.held), opened=None)

    def opened_behind(self, message: str) -> Self:
        """The same, read up to the question that follows `message`."""
        return replace(self, opened=message)

    def followed_by(
        self, asked: Messages, answer: Message, prompt_tokens: int | None, held: int, decided: Decided = NOTHING
    ) -> Self:
        """After `asked` was answered, `held` tokens in the cache; `prompt_tokens` None where they are not known.

        Those of a continuation have the answer so far in them, and tell nothing of where it began. `decided` is what
        the template was told beside the messages.
        """
        questions = _questions(asked)
        known = self._common(questions)
        before = [tokens for _, tokens in self.prompt[:known]] + [None] * (len(questions) - known)
        if before and prompt_tokens is not None and len(questions) == len(asked):
            before[-1] = min(prompt_tokens, held)
        prompt = tuple(zip(map(_digest, questions), before, strict=True))
        return type(self)(prompt, _digest(answer) if answer["content"] else None, _settings(asked, decided))

    def cause(
        self, asked: Messages, cache: int, held: int, decided: Decided = NOTHING, *, trimmed: bool = False
    ) -> str | None:
        """Why no more than `cache` of the `held` tokens were found again for `asked`; None when that is as it must be.

        `trimmed`: the window was moved for it, so that it begins with another question. `cache_lost`: the
        server has less than both prompts begin with; `settings`: another system prompt was set, or something
        else that the template writes before them. `template`: the last answer is written otherwise in history,
        from its beginning. `branch`: messages are read again that came after another message than the one in
        the cache. None also where the model chose tokens that its tokenizer does not: answers are read again as
        text, so the cache ends there (one of five of 150 tokens, SmolLM2 at temperature 0.8).
        """
        if not self.prompt:
            return None
        held = held if self.held is None else min(held, self.held)
        changed = self.settings not in (None, _settings(asked, decided))
        asked, known = _questions(asked), self._common(asked)
        if changed and not known:
            return "settings"
        if cache < max((tokens or 0 for _, tokens in self.prompt[:known]), default=0) - OPENING:
            return "settings" if changed else "cache_lost"
        following = asked[known:]
        if trimmed and not any(message["role"] != "system" for message in asked[:known]):
            return "trimmed"
        if known == len(self.prompt) and following and _digest(following[0]) == self.answer:
            begins = self.prompt[-1][1]
            return "template" if begins and cache <= begins + OPENING and held - cache >= SMALL else None
        return "branch" if following[:-1] else None

    def holds(self, asked: Messages) -> int:
        """How many of the first messages of `asked` the cache holds, the answer to the last prompt among them."""
        known = self._common(asked)
        following = asked[known : known + 1]
        return known + (known == len(self.prompt) > 0 and bool(following) and _digest(following[0]) == self.answer)

    def ends_with(self, asked: Messages) -> bool:
        """Whether the cache holds all of `asked`, and nothing of another version behind it."""
        answered = self.answer is not None
        return len(asked) == self.holds(asked) == len(self.prompt) + answered

    def promises(self, asked: Messages, decided: Decided = NOTHING) -> int:
        """How many tokens must be found again, at least, if the cache holds what was noted."""
        if self.settings not in (None, _settings(asked, decided)):
            return 0
        return max((tokens or 0 for _, tokens in self.prompt[: self._common(asked)]), default=0)

    def counted(self, asked: Messages, held: int) -> tuple[int, int]:
        """How many of the first messages of `asked` were counted, and how many tokens they have at most."""
        known = self._common(asked)
        following = asked[known : known + 1]
        if held and known == len(self.prompt) > 0 and following and _digest(following[0]) == self.answer:
            return known + 1, held
        counted = [(at, tokens) for at, (_, tokens) in enumerate(self.prompt[:known], 1) if tokens]
        return counted[-1] if counted else (0, 0)

    def _common(self, asked: Messages) -> int:
        pairs = zip(self.prompt, asked, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0][0] == _digest(pair[1]), pairs))


def _questions(asked: Messages) -> Messages:
    """Without the answer so far, which a continuation ends with."""
    return asked[:-1] if asked and asked[-1]["role"] == "assistant" else asked


def _digest(message: Message) -> str:
    thought = f"\0{message['reasoning_content']}" if message.get("reasoning_content") else ""
    return _of(f"{message['role']}\0{message['content']}{thought}")


def _settings(asked: Messages, decided: Decided) -> str:
    system = asked[0]["content"] if asked and asked[0]["role"] == "system" else ""
    return _of(json.dumps([system, dict(decided)], sort_keys=True))


def _of(said: str) -> str:
    return hashlib.blake2b(said.encode(), digest_size=8).hexdigest()
