"""The canaries: a few short requests that show what a server's slots keep, lose or share.

Random words as raw prompts, a model token or two of answer, each request naming its slot and under a stream id of its
own, and quiet again before the next is sent:

1. A, B, A… on one slot: the third finds A again only in a cache beside the slots, llama-server's RAM cache.
2. A… on that slot, C on another, A… again: not found again where slots share one context and clear each other.
3. A… saved to a file, restored into a slot that holds something else, continued: found again, or parking is useless.

Every later A goes on where the former ended and nowhere else: models that cannot go back within their cache (sliding
window, recurrent) are judged rightly too. Where parking works a fixed question is answered with a few tokens, which
other weights answer otherwise. About 40 model tokens are read in all. Measured on llama.cpp b11549:
13-word canaries tell default flags, `-np 2`, `--kv-unified` and the strict flags apart.
"""

import contextlib
import secrets
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from slots.client import LlamaServer, ServerError, ServerRefused, SlotState
from slots.grades import Findings, Parking, Verdict, unusable
from slots.reading import Event
from slots.servers import wait_until_quiet

PATIENCE = 25.0  # seconds for one canary on the slowest machine that is of any use
CANARY_WORDS = 7
QUESTION, ANSWER_TOKENS = "One day the oldest of the three sisters said:", 8
MARGIN = 2  # tokens that two prompts may share by chance, and a beginning-of-text token
EMBEDDING = "It answers no texts: it serves an embedding model, or was started with --embeddings."
SEE_ITS_LOG = "See its own log; then restart it, or probe it again."
NO_EMBEDDING = "Start llama-server with a chat model and without --embeddings."
_NOUNS = (
    "river", "garden", "bread", "winter", "music", "paper", "house", "water", "light", "stone", "horse", "table",
    "window", "summer", "forest", "bridge", "silver", "orange", "market", "doctor", "letter", "island", "garlic",
    "copper", "button", "castle", "pepper", "circle", "hunter", "ladder", "basket", "candle", "engine", "mirror",
    "needle", "pocket", "rabbit", "saddle", "ticket", "turtle", "walnut", "wagon", "yellow", "anchor", "dragon",
)  # fmt: skip


class Disturbed(ServerError):
    """Somebody else used the slots while they were tried: what was found counts for nothing."""

    code = "disturbed"


@dataclass(frozen=True, slots=True)
class Plan:
    """Which slots are used, by preference such as nobody used before; `fresh` if that is so."""

    first: int
    second: int | None  # None on a server of one slot
    fresh: bool


def rejection(error: ServerError) -> Verdict:
    """For a server that does not answer a canary."""
    if "embedding" in str(error).lower():
        return unusable(EMBEDDING, NO_EMBEDDING)
    return unusable(f"It cannot complete a text: {error}", SEE_ITS_LOG)


def plan(states: Sequence[SlotState]) -> Plan:
    """Raises Disturbed while any slot is busy."""
    if busy := [state.id for state in states if state.busy]:
        raise Disturbed(f"Slot {busy[0]} is busy with a request that is not ours.")
    ranked = sorted(states, key=lambda state: (state.task is not None, state.id))
    chosen = ranked[:2]
    second = chosen[1].id if len(chosen) > 1 else None
    return Plan(chosen[0].id, second, all(state.task is None for state in chosen))


class Canaries:
    """Sends them. `before` is called ahead of each request and may end the probe by raising."""

    def __init__(self, client: LlamaServer, plan: Plan, before: Callable[[], None], filename: str) -> None:
        self._client, self._plan, self._before, self._filename = client, plan, before, filename
        self._tasks = {state.id: state.task for state in client.slots()}
        self._told = True

    def run(self) -> Findings:
        """All of it. Raises ServerError, Disturbed among them, and whatever `before` raises."""
        first, second = self._plan.first, self._plan.second
        prompt, *others = _prompts()
        self._ask(first, prompt)
        other = self._ask(first, others[0])
        prompt, found = self._go_on(first, prompt)
        ram_cache, loses = found > other + MARGIN, False
        if second is not None:
            self._ask(second, others[1])
            before = prompt
            prompt, found = self._go_on(first, prompt)
            loses = found < self._least(before)
        if ram_cache or loses:
            return Findings(self._told, ram_cache, loses, self._parking_by_name())
        parking = self._park(first, second, prompt, others[2])
        if parking is not Parking.WORKS:
            return Findings(self._told, parking=parking)
        return Findings(self._told, parking=parking, answer=self._answer(first), weights=self._client.weights())

    def _answer(self, id_slot: int) -> str:
        """Its first words when it is always the likeliest token that it says, whatever was in the cache."""
        fixed = {"max_tokens": ANSWER_TOKENS, "cache_prompt": False, "seed": 1}
        return "".join(event.text for event in self._asked(id_slot, QUESTION, fixed))

    def _park(self, first: int, second: int | None, prompt: str, other: str) -> Parking:
        try:
            self._before()
            saved = self._client.act(first, "save", self._filename)
        except ServerError as error:
            if error.status == 501:
                return Parking.OFF
            if isinstance(error, ServerRefused):
                return Parking.USELESS
            raise
        into = first if second is None else second
        if second is None:
            self._ask(first, other)
        try:
            self._before()
            restored = self._client.act(into, "restore", self._filename)
        except ServerRefused:
            return Parking.USELESS
        _, found = self._go_on(into, prompt)
        return Parking.WORKS if restored == saved and found >= self._least(prompt) else Parking.USELESS

    def _parking_by_name(self) -> Parking:
        """Whether there is a --slot-save-path, without writing there: a name that is refused is refused after that."""
        try:
            self._before()
            self._client.act(self._plan.first, "save", "../not a name")
        except ServerError as error:
            return Parking.OFF if error.status == 501 else Parking.WORKS
        return Parking.WORKS

    def _least(self, prompt: str) -> int:
        """Model tokens that `prompt` has at least: a word is one or more."""
        return len(prompt.split()) - MARGIN

    def _go_on(self, id_slot: int, prompt: str) -> tuple[str, int]:
        longer = f"{prompt} {_noun()}"
        return longer, self._ask(id_slot, longer)

    def _ask(self, id_slot: int, prompt: str) -> int:
        """How many tokens of `prompt` the server reused."""
        for event in reversed(self._asked(id_slot, prompt, {})):
            if event.timings and "cache_n" in event.timings:
                return int(event.timings["cache_n"])
            if event.progress:
                return event.progress["cache"]
        self._told = False
        return 0

    def _asked(self, id_slot: int, prompt: str, otherwise: dict[str, Any]) -> list[Event]:
        """What the server said to it, once the slot is quiet again."""
        self._before()
        self._check(id_slot)
        stream_id = uuid.uuid4()
        body = {
            "prompt": prompt, "id_slot": id_slot, "max_tokens": 1, "temperature": 0, "stream": True,
            "return_progress": True, "stream_options": {"include_usage": True}, **otherwise,
        }  # fmt: skip
        try:
            with self._client.post(body, stream_id, "/v1/completions", PATIENCE) as stream:
                events = list(stream.events())
        except ServerError:
            with contextlib.suppress(ServerError):  # it ends by itself, after a token or a few
                self._client.stop(stream_id)
            raise
        _, self._tasks[id_slot] = wait_until_quiet(self._client, id_slot)
        return events

    def _check(self, id_slot: int) -> None:
        """Nobody but us was in our slots since the last canary."""
        ours = (self._plan.first, self._plan.second)
        for state in self._client.slots():
            if state.id in ours and (state.busy or state.task != self._tasks.get(state.id)):
                raise Disturbed(f"Slot {state.id} was used by a request that is not ours.")
            if state.id == id_slot and state.busy:
                raise Disturbed(f"Slot {id_slot} is busy with a request that is not ours.")


def _prompts() -> list[str]:
    """Four prompts that begin differently."""
    starts = secrets.SystemRandom().sample(_NOUNS, 4)
    return [" ".join([start, *(_noun() for _ in range(CANARY_WORDS - 1))]) for start in starts]


def _noun() -> str:
    return secrets.choice(_NOUNS)
