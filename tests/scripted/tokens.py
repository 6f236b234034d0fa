"""A tokenizer small enough to predict by hand, and the ChatML template of the real test model.

A token is a control token, <think> or </think>, up to eight word characters with the space before them, or one other
character. Reading is greedy from the left, so text cut between two tokens is read as the same tokens again: an answer
sent back as history hits the cache exactly as far as it was generated.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

IM_START, IM_END = "<|im_start|>", "<|im_end|>"
END_OF_TEXT, FILENAME = "<|endoftext|>", "<filename>"
THINK, END_THINK = "<think>", "</think>"
CONTROL = (END_OF_TEXT, IM_START, IM_END, FILENAME)
# Part of the vocabulary like words, as in the models that think: read as tokens whether control tokens are or not.
DEFINED = (THINK, END_THINK)
_WORD = r" ?\w{1,8}|."
_TOKEN = re.compile("|".join([*map(re.escape, CONTROL + DEFINED), _WORD]), re.DOTALL)
_PLAIN_TOKEN = re.compile("|".join([*map(re.escape, DEFINED), _WORD]), re.DOTALL)
# That of the real test model, and what those of models that think have beside it.
_BEGIN = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n'}}"
)
_THOUGHTS = (
    "{% if message['reasoning_content'] %}{{ '<think>' + message['reasoning_content'] + '</think>' }}{% endif %}"
)
_END = (
    "{{ message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_SWITCH = (
    "{% if add_generation_prompt and enable_thinking is defined and not enable_thinking %}"
    "{{ '<think></think>' }}{% endif %}"
)
TEMPLATE = _BEGIN + _THOUGHTS + _END
DEFAULT_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


@dataclass(frozen=True)
class Template:
    """Whether the chat template `keeps` earlier thoughts, and has a `switch` for new ones."""

    keeps: bool = True
    switch: bool = False

    @property
    def text(self) -> str:
        return _BEGIN + (_THOUGHTS if self.keeps else "") + _END + (_SWITCH if self.switch else "")

    def thinks(self, body: Mapping[str, Any]) -> bool:
        """Unless this request says otherwise."""
        decided = body.get("chat_template_kwargs") or {}
        return not self.switch or decided.get("enable_thinking") is not False


def split(text: str, *, special: bool = True) -> list[str]:
    """The tokens of a text, as their pieces; joined they are the text. Without `special` none is a control token."""
    return (_TOKEN if special else _PLAIN_TOKEN).findall(text)


class Vocabulary:
    """Numbers for pieces, given out as they are first seen (control tokens have fixed ones, as in the real model)."""

    def __init__(self) -> None:
        self._pieces: list[str] = [*CONTROL, *DEFINED]
        self._ids = {piece: number for number, piece in enumerate(self._pieces)}

    def ids(self, pieces: Iterable[str]) -> list[int]:
        return [self._id(piece) for piece in pieces]

    def _id(self, piece: str) -> int:
        if piece not in self._ids:
            self._ids[piece] = len(self._pieces)
            self._pieces.append(piece)
        return self._ids[piece]

    def text(self, ids: Iterable[int]) -> str:
        return "".join(self._pieces[number] for number in ids if 0 <= number < len(self._pieces))


def text_of(message: Mapping[str, Any]) -> str:
    """A message's text. Raises ValueError with llama-server's sentence when it has none it can read."""
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    raise ValueError("Expected 'content' to be a string or an array")


def _said(role: str, text: str, thought: str = "") -> str:
    return f"{IM_START}{role}\n{THINK + thought + END_THINK if thought else ''}{text}{IM_END}\n"


def render(
    messages: Sequence[Mapping[str, Any]], *, generation_prompt: bool = True, keeps: bool = True, thinks: bool = True
) -> str:
    """The conversation in ChatML, with the model's own system prompt where the conversation brings none."""
    opening = "" if messages and messages[0].get("role") == "system" else _said("system", DEFAULT_SYSTEM)
    said = [
        _said(str(message.get("role", "user")), text_of(message), str(message.get("reasoning_content") or "") * keeps)
        for message in messages
    ]
    thought = "" if thinks else THINK + END_THINK
    return opening + "".join(said) + (f"{IM_START}assistant\n{thought}" if generation_prompt else "")


def common_prefix(first: Sequence[str], second: Sequence[str]) -> int:
    """How many tokens two sequences share from their start."""
    length = min(len(first), len(second))
    for position in range(length):
        if first[position] != second[position]:
            return position
    return length
