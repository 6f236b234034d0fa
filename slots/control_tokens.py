"""Words that a server's tokenizer takes for control tokens reach the model as words.

llama-server reads control tokens wherever they stand, also in what a person wrote: `<|im_end|>` in a message ends that
message. What is sent has an invisible character (BREAK) after the first one of every such word; what is stored is what
was written. The change depends on the text alone, so that the next turn finds its history in the cache, and can be
taken back exactly: `mended(broken(text)) == text`, whatever is in it.

Which words these are only the server knows. Known from its start are those of its chat template; each text is read by
its tokenizer once with and once without control tokens, and what differs is one. Texts without any of SUSPICIOUS are
not asked about, which every control token we know of has (llama.cpp's vocabularies of 2026). Models whose template has
no tokens of its own ("### Instruction:") tell their parts by common words, and nothing can be done for them here.
"""

import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from slots.client import LlamaServer, ServerRefused

BREAK = "\u200b"  # zero width space
SUSPICIOUS = re.compile(r"[<>\[\]|｜]")
ROUNDS = 4  # a control token can be hidden in another; deeper nesting than this is not sent as it is
PASSAGE = 20_000  # code points that are asked about at once; 50 ms on a slow core
OVERLAP = 200  # the longest control tokens have a few dozen
MOST_KNOWN = 20_000  # texts known to be clean, by their hashes: a few hundred conversations
UNBREAKABLE = "The conversation has words in it that the model would take for its own control tokens."

_OF_JINJA = re.compile(r"{#.*?#}|{[{%](.*?)[%}]}", re.DOTALL)
_QUOTED = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"")
_MARK = re.compile(r"<<[^\s<>]+>>|<[^\s<>]{1,60}>|\[/?[A-Z][A-Z0-9_]*\]")
# Nobody writes these in text or code by chance: they count even where the tokenizer does not know them (Llama 2).
_UNMISTAKABLE = re.compile(r"<[|｜].*[|｜]>|<<.*>>|\[/?[A-Z][A-Z0-9_]*\]")


class Words:
    """A set of words to be broken; grows by replacement."""

    def __init__(self, words: Iterable[str] = ()) -> None:
        self.words = frozenset(word for word in words if len(word) > 1 and BREAK not in word)
        self.longest = max(map(len, self.words), default=0)
        # Looking ahead finds also those that begin within another one.
        self._starts = re.compile("(?=" + "|".join(map(re.escape, sorted(self.words))) + ")") if self.words else None

    def broken(self, text: str) -> str:
        """`text` with no word of ours in it: one BREAK more after the first character of each."""
        for at in reversed(self._begin(text)):
            text = text[: at + 1] + BREAK + text[at + 1 :]
        return text

    def mended(self, text: str) -> str:
        """`text` with one BREAK fewer there. Elsewhere it is left: some scripts part their words by it."""
        for at in reversed(self._begin(text)):
            if text[at + 1 : at + 2] == BREAK:
                text = text[: at + 1] + text[at + 2 :]
        return text

    def open(self, text: str) -> bool:
        """Whether a BREAK in `text` may be one of ours, depending on what comes after its end."""
        at = [index for index, character in enumerate(text) if character != BREAK]
        base = text.replace(BREAK, "")
        return any(
            text[at[start] + 1 : at[start] + 2] == BREAK and self._may_become(base[start:])
            for start in range(max(0, len(base) - self.longest), len(base))
        )

    def _may_become(self, beginning: str) -> bool:
        return any(word.startswith(beginning) and word != beginning for word in self.words)

    def _begin(self, text: str) -> list[int]:
        """Where our words begin, as if there were no BREAK in `text`."""
        if self._starts is None:
            return []
        if BREAK not in text:
            return [found.start() for found in self._starts.finditer(text)]
        at = [index for index, character in enumerate(text) if character != BREAK]
        return [at[found.start()] for found in self._starts.finditer(text.replace(BREAK, ""))]


class Mender:
    """Takes the breaks out of an answer that comes in pieces; holds back what it cannot judge yet."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._before = ""  # what was let through last, without breaks
        self._held = ""
        self.held = 0  # pieces

    def feed(self, piece: str) -> str:
        """What can be shown by now; empty while `piece` is held back."""
        self._held += piece
        if BREAK in self._held and self._words.open(self._before + self._held):
            self.held += 1
            return ""
        return self.flush()

    def flush(self) -> str:
        """What was held back, when nothing more comes."""
        mended = self._words.mended(self._before + self._held)[len(self._before) :] if self._held else ""
        self._before = (self._before + mended.replace(BREAK, ""))[-max(0, self._words.longest - 1) :]
        self._held, self.held = "", 0
        return mended


class ControlTokens:
    """Those of one process of a server, as far as they were met."""

    def __init__(self, client: LlamaServer) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._clean: dict[int, None] = {}
        self._read = False
        self.words = Words()

    def neutral(self, messages: Sequence[dict[str, str]]) -> list[dict[str, str]]:
        """Chat messages in which the server's tokenizer finds no control token.

        Asks the server about texts it was not asked about before: no request for prose, two for what looks like code.
        Raises ServerError; ServerRefused also for a text in which more is found every time it is looked at.
        """
        self._learn_template()
        for _ in range(ROUNDS):
            sent = [self._broken(message) for message in messages]
            unknown = [text for message in sent for name, text in message.items() if name != "role"]
            unknown = [text for text in unknown if SUSPICIOUS.search(text) and hash(text) not in self._clean]
            if not unknown or not (found := self._found(unknown)):
                self._remember(unknown)
                return sent
            self._add(found)
        raise ServerRefused(UNBREAKABLE)

    def _broken(self, message: dict[str, str]) -> dict[str, str]:
        return {name: text if name == "role" else self.words.broken(text) for name, text in message.items()}

    def _found(self, texts: list[str]) -> set[str]:
        return {word for passage in _passages(texts) for word in self._found_in(passage)}

    def _found_in(self, passage: str) -> set[str]:
        """What the tokenizer reads only when it looks for control tokens, and alone as well."""
        try:
            looked, plain = self._client.tokens(passage), self._client.tokens(passage, special=False)
        except ServerRefused:
            return _unbroken(passage)  # it has no tokenizer to ask
        if looked == plain:
            return set()
        known = {number for number, _ in plain}
        candidates = {piece for number, piece in looked if number not in known and len(piece) > 1 and piece in passage}
        found = {piece for piece in candidates if self._is_control(piece)} or _unbroken(passage)
        if not found:
            raise ServerRefused(UNBREAKABLE)
        return found

    def _is_control(self, word: str) -> bool:
        alone = self._client.tokens(word)
        return len(alone) == 1 and alone != self._client.tokens(word, special=False)

    def _learn_template(self) -> None:
        """Once; a failure is tried again with the next turn."""
        if self._read:
            return
        template, *ends = self._client.template()
        self._add({*filter(None, ends), *filter(self._counts, marks(template))})
        self._read = True

    def _counts(self, mark: str) -> bool:
        if _UNMISTAKABLE.fullmatch(mark):
            return True
        try:
            return len(self._client.tokens(mark)) == 1
        except ServerRefused:
            return True

    def _add(self, words: set[str]) -> None:
        with self._lock:
            self.words = Words(self.words.words | words)

    def _remember(self, texts: list[str]) -> None:
        with self._lock:
            self._clean.update(dict.fromkeys(map(hash, texts)))
            for oldest in list(self._clean)[: max(0, len(self._clean) - MOST_KNOWN)]:
                del self._clean[oldest]


@lru_cache(maxsize=64)
def of_process(client: LlamaServer, process: Any) -> ControlTokens:
    """The control tokens of the server that `client` speaks to, as long as `process` tells the same one."""
    return ControlTokens(client)


def _unbroken(text: str) -> set[str]:
    return {mark for mark in _MARK.findall(text) if BREAK not in mark}


def _passages(texts: list[str]) -> Iterator[str]:
    """The lines that need to be looked at, in passages that overlap: no answer is too long, no word cut."""
    lines = [line for text in texts for line in text.split("\n") if SUSPICIOUS.search(line)]
    joined = "\n".join(lines)
    for begin in range(0, len(joined), PASSAGE):
        yield joined[begin : begin + PASSAGE + OVERLAP]


def marks(template: str) -> set[str]:
    """What a chat template writes itself that looks like a control token."""
    inside = [found[1] or "" for found in _OF_JINJA.finditer(template)]
    written = [one or other for code in inside for one, other in _QUOTED.findall(code)]
    return {mark for text in [_OF_JINJA.sub(" ", template), *written] for mark in _MARK.findall(text)}
