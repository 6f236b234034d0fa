"""Shown on a server of one's own: whether one conversation's text gets into another's answer.

llama-server's RAM cache (`--cache-ram`, on by default) is exchanged before a request that names a slot is told that
the slot is busy: what is cached of the newcomer is put under the answer being written there, which goes on in the
newcomer's words, with status 200 (llama.cpp b11434 and b11549). Played with two harmless texts, as raw prompts,
temperature 0: B's story is told in a slot; A's question is answered in it alone; then once more, and while that
is being written B asks the same slot to go on with the story. A's two answers must be the same, letter by letter. If
they are not, A is asked alone once more: only a server that repeats itself undisturbed can be shown anything.

A's prompt is never taken from a cache: read in other batches it may be answered otherwise by rounding alone.
"""

import secrets
import textwrap
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from slots import probe
from slots.client import LlamaServer, Props, ServerError, Stream
from slots.models import Server, Slot
from slots.probe import Disturbed
from slots.servers import wait_until_quiet

BEGUN = "The steam engine"
QUESTION = f"Question: How did the steam engine change the world?\nAnswer: {BEGUN}"
STORY = "Story no. {}: Once upon a time a young dragon lived in a castle by the sea. One morning"
SEQUEL = "\nThen the dragon"
STORY_TOKENS = 40
ANSWER_TOKENS = 72
BEFORE = 12  # tokens of A's answer until B comes
AFTER = 12  # tokens that A's answer must go on then, or B may have come too late
NEWCOMER_TOKENS = 4
COLUMN = 46  # characters
ASKED = "  A is asked how the steam engine changed the world; B is being told a story about a dragon."
ALONE, BESIDE = "A alone", "A, while B asks the same slot"
PARTED = " here they part "
SPLICED = (
    "B's conversation got into A's answer, and the server answered both with status 200. Whoever names slots on this "
    "server must send it one request at a time, as this site does, or start it with the flags below."
)
KEPT_APART = "The same, letter by letter: B waited for the slot, and nothing of B got into A's answer."
NOT_NOW = (
    "The same this time. But its RAM cache is on, and that is what puts one conversation's text into another's answer: "
    "the flags below switch it off."
)


class Unproved(ServerError):
    """Nothing can be said either way; the sentence says why."""

    code = "unproved"


@dataclass(frozen=True, slots=True)
class Shown:
    """A's answer alone, and while B asked for the slot it was written in; how it begins is part of the question."""

    alone: str
    beside: str

    @property
    def spliced(self) -> bool:
        return self.alone != self.beside


def announcement(url: str) -> str:
    """What is about to be sent, and what it takes with it."""
    return (
        f"{url} must be idle, and nobody else may use it meanwhile. Sent are the few random words by which it is "
        "graded; a story about a dragon, called B; a question about steam engines, called A, once alone, once with B "
        "asking for the same slot: some 300 model tokens in all. What one or two of its slots keep warm is lost."
    )


def in_service(url: str, props: Props) -> str | None:
    """Why it must be left alone, as our own database knows: it is in service here, or leased. None if not.

    Raises DatabaseError when that cannot be known.
    """
    rows = Server.objects.filter(url=url)
    if props.boot:  # the same process under another address
        rows |= Server.objects.filter(boot=props.boot)
    for server in rows:
        in_use = Slot.objects.filter(server=server).exclude(phase=Slot.Phase.FREE, stream_id=None)
        if in_use.exists():
            return (
                f"{server.url} is leased to conversations of this site. Drain it in the admin and wait for their end."
            )
        if server.state not in (Server.State.DRAINING, Server.State.RETIRED, Server.State.UNUSABLE):
            return f"{server.url} is in service on this site: anybody may be leased a slot meanwhile. Drain it first."
    return None


def show(client: LlamaServer) -> Shown:
    """Play it on a slot that nobody used yet, if there is one; a few seconds up to a minute.

    Raises Disturbed if somebody else uses the server, Unproved, or another ServerError. Whatever happens, nothing of it
    runs on afterwards.
    """
    plan = probe.plan(client.slots())
    return _Play(client, plan.first).run()


class _Play:
    def __init__(self, client: LlamaServer, id_slot: int) -> None:
        self._client, self._id_slot = client, id_slot
        self._tasks = {state.id: state.task for state in client.slots()}

    def run(self) -> Shown:
        # A story of its own each time: what a RAM cache holds already is not kept anew, but soon dropped as its oldest.
        opening = STORY.format(1000 + secrets.randbelow(9000))
        story = self._answer(opening, STORY_TOKENS)
        alone = self._answer(QUESTION, ANSWER_TOKENS, whole=True)
        beside = self._answered_beside(f"{opening}{story}{SEQUEL}")
        if alone != beside and alone != self._answer(QUESTION, ANSWER_TOKENS, whole=True):
            raise Unproved("It answers the same question differently each time, also when it is alone with it.")
        return Shown(BEGUN + alone, BEGUN + beside)

    def _answered_beside(self, newcomer: str) -> str:
        """A's answer with B sent to the same slot in the middle of it; B is over too."""
        pieces: list[str] = []
        ids = uuid.uuid4(), uuid.uuid4()
        self._check()
        with ThreadPoolExecutor(1) as pool, self._quiet_afterwards(*ids):
            came: Future[str] | None = None
            with self._post(QUESTION, ANSWER_TOKENS, ids[0], whole=True) as stream:
                for piece in _pieces(stream):
                    pieces.append(piece)
                    if came is None and len(pieces) >= BEFORE:
                        came = pool.submit(self._read, newcomer, NEWCOMER_TOKENS, ids[1])
                        sent_after = len(pieces)
            if came is None or len(pieces) - sent_after < AFTER:
                raise Unproved("Its answer ended before anybody could come between.")
            came.result()
        return "".join(pieces)

    def _answer(self, prompt: str, tokens: int, *, whole: bool = False) -> str:
        self._check()
        stream_id = uuid.uuid4()
        with self._quiet_afterwards(stream_id):
            return self._read(prompt, tokens, stream_id, whole=whole)

    def _read(self, prompt: str, tokens: int, stream_id: uuid.UUID, *, whole: bool = False) -> str:
        with self._post(prompt, tokens, stream_id, whole=whole) as stream:
            return "".join(_pieces(stream))

    def _post(self, prompt: str, tokens: int, stream_id: uuid.UUID, *, whole: bool) -> Stream:
        """`whole`: the prompt is read anew, whatever is cached of it."""
        body: dict[str, Any] = {
            "prompt": prompt, "id_slot": self._id_slot, "max_tokens": tokens, "temperature": 0, "seed": 1,
            "stream": True, "ignore_eos": True, "cache_prompt": not whole,
        }  # fmt: skip
        return self._client.post(body, stream_id, "/v1/completions", probe.PATIENCE)

    @contextmanager
    def _quiet_afterwards(self, *stream_ids: uuid.UUID) -> Iterator[None]:
        """Whatever ends the block, also Ctrl-C: these streams are stopped and our slot is quiet."""
        try:
            yield
        except BaseException:
            for stream_id in stream_ids:
                with suppress(ServerError):  # the cause is what is told
                    self._client.stop(stream_id)
            raise
        _, self._tasks[self._id_slot] = wait_until_quiet(self._client, self._id_slot)

    def _check(self) -> None:
        """Nobody but us has used the server since we began."""
        for state in self._client.slots():
            if state.busy or state.task != self._tasks.get(state.id):
                raise Disturbed(f"Slot {state.id} was used by a request that is not ours.")


def _pieces(stream: Stream) -> Iterator[str]:
    return (event.text for event in stream.events() if event.text)


def text(shown: Shown, *, ram_cache: bool) -> str:
    """Both answers side by side, marked where they part, and what that means for a server with or without RAM cache."""
    pairs = enumerate(zip(shown.alone, shown.beside, strict=False))
    same = next((place for place, (one, other) in pairs if one != other), min(len(shown.alone), len(shown.beside)))
    if shown.spliced:
        same = shown.alone.rfind(" ", 0, same) + 1  # whole words
    lines = [ASKED, "", _row(ALONE, BESIDE), _rule(), *_columns(shown.alone[:same], shown.beside[:same])]
    if shown.spliced:
        lines += [_rule(PARTED), *_columns(shown.alone[same:], shown.beside[same:])]
    meaning = SPLICED if shown.spliced else NOT_NOW if ram_cache else KEPT_APART
    return "\n".join([*lines, "", *textwrap.wrap(meaning, 2 * COLUMN + 3, initial_indent="  ", subsequent_indent="  ")])


def _columns(left: str, right: str) -> Iterator[str]:
    columns = [textwrap.wrap(_printable(side), COLUMN) for side in (left, right)]
    for row in range(max(map(len, columns))):
        yield _row(*(column[row] if row < len(column) else "" for column in columns))


def _printable(words: str) -> str:
    """A model's words for a terminal: nothing that would steer it."""
    return "".join(character if character.isprintable() else " " for character in words)


def _row(left: str, right: str) -> str:
    return f"  {left.ljust(COLUMN)} │ {right}".rstrip()


def _rule(said: str = "") -> str:
    return f"  {said.center(COLUMN, '─')}─┼─{'─' * COLUMN}"
