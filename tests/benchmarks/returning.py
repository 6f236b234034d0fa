"""People who come back: conversations in turn on a third as many slots, until the first piece of each answer.

Beside it the same llama-server without us, a second process of it with the same flags, of which each client manages the
slots itself: it saves what is in a slot to a file, restores its own, and asks. One side works at a time. Each return is
followed by a second turn of the same conversation, which is warm: that is what a return is compared with.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django.db.models import Exists, OuterRef, Q

from conversations import prefixes
from slots import leases
from slots.models import Park, Slot
from tests.benchmarks.figures import Row, at_most, median, ms, quantile
from tests.benchmarks.ours import Person, Tab
from tests.benchmarks.straight import Straight
from tests.eventually import eventually

PARAMS = {"temperature": 0, "max_tokens": 6}
QUESTIONS = ("And then?", "Say more.", "Is it so?", "Go on.", "What else?", "How so?")
RETURNING, PREWARMED, TAIL = 1.15, 1.05, 2.0  # times a warm turn
REPLAYS = 3  # of what takes seconds each
PREWARM_SECONDS = 60
# A model token each, or a little more.
WORDS = [
    "river",
    "garden",
    "bread",
    "winter",
    "music",
    "paper",
    "house",
    "water",
    "light",
    "stone",
    "horse",
    "table",
    "window",
    "summer",
    "forest",
    "bridge",
    "silver",
    "orange",
    "market",
    "doctor",
    "letter",
    "island",
    "garlic",
    "copper",
    "button",
    "castle",
    "pepper",
    "circle",
    "hunter",
    "ladder",
    "basket",
    "candle",
]


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: `words` of each conversation, 640 being about 850 model tokens."""

    conversations: int = 12
    rounds: int = 3
    words: int = 640
    preset_words: int = 1150


@dataclass
class Took:
    """Seconds to the first piece, by kind of turn."""

    returning: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)


class Beside:
    """One conversation of a client that keeps slots and files itself, on one slot of the second process."""

    def __init__(self, slot: Straight, number: int, words: int) -> None:
        self._slot, self._file = slot, f"conversation-{number}"
        self._history: list[dict[str, str]] = []
        self.say(story(number, words))

    def say(self, words: str, *, cache_prompt: bool = True) -> float:
        """Seconds to the first piece of the answer; without the cache everything is read again."""
        self._slot.session.close()  # the server closes a connection whose answer took more than 5 seconds
        self._history.append({"role": "user", "content": words})
        said = self._slot.ask(self._history, max_tokens=PARAMS["max_tokens"], cache_prompt=cache_prompt)
        self._history.append({"role": "assistant", "content": said.text})
        return said.first

    def leave(self) -> None:
        self._slot.act("save", self._file)

    def come_back(self) -> None:
        self._slot.act("restore", self._file)


class Visits:
    """Conversations through us and as many straight, `words` long, that are returned to in a fixed order."""

    def __init__(self, person: Person, straight: list[Straight], stack: ExitStack, number: int, words: int) -> None:
        self._person = person
        self.wheres = [person.conversation(params=PARAMS) for _ in range(number)]
        self._tabs = [stack.enter_context(person.tab(where)) for where in self.wheres]
        self._beside = []
        for turn, tab in enumerate(self._tabs):
            answered(tab, story(turn, words))
            self._beside.append(Beside(straight[turn % len(straight)], turn, words))
            self._beside[-1].leave()
        self._slots = len(straight)

    def round(self, words: str, ours: Took, straight: Took) -> None:
        """Everybody comes back once, each on both sides, and says two things."""
        for number, (tab, other) in enumerate(zip(self._tabs, self._beside, strict=True)):
            ours.returning.append(answered(tab, words))
            ours.warm.append(answered(tab, words))
            began = time.monotonic()
            self._beside[number - self._slots].leave()
            other.come_back()
            straight.returning.append(time.monotonic() - began + other.say(words))
            straight.warm.append(other.say(words))

    def replays(self, words: str) -> list[float]:
        return [other.say(words, cache_prompt=False) for other in self._beside[:REPLAYS]]

    def opened_first(self, words: str) -> list[float]:
        """Each opens the conversation, reads for a while, and then says something; a slot is free meanwhile."""
        took = []
        for where in self.wheres[: self._slots]:
            _free_a_slot()
            with self._person.tab(where) as tab:
                eventually(partial(_idle, where), PREWARM_SECONDS, what=f"{where} to be prewarmed")
                took.append(answered(tab, words))
        return took


def measure(person: Person, slots: list[Straight], restart: Callable[[], None], size: Size) -> list[Row]:
    """`slots`: those of the second process, as many as ours are. `restart` kills ours and awaits its return."""
    ours, straight, after = Took(), Took(), Took()
    with ExitStack() as stack:
        visits = Visits(person, slots, stack, size.conversations, size.words)
        for number in range(size.rounds):
            visits.round(QUESTIONS[number % len(QUESTIONS)], ours, straight)
        eventually(_all_parked, PREWARM_SECONDS, what="everybody to be parked")
        restart()
        visits.round(QUESTIONS[2], after, Took())
        replays = visits.replays(QUESTIONS[3])
        prewarmed = visits.opened_first(QUESTIONS[4])
    return [*_returning(ours, straight, replays), *_others(prewarmed, after)]


def measure_preset(person: Person, words: int) -> list[Row]:
    """The first turn of a conversation under a long system prompt, and of one like it a little later."""
    preset = person.post("presets/", {"name": "long", "system_prompt": story(1000, words), "params": PARAMS})
    preset.raise_for_status()
    _free_a_slot()
    eventually(_is_parked, PREWARM_SECONDS, what="the preset's prompt to be parked")
    ours = [_first_turn(person, {"preset": preset.json()["id"]}) for _ in range(REPLAYS)]
    other = {"system_prompt": story(1001, words), "params": PARAMS}
    without = _first_turn(person, other)
    ratio = f"{median(ours) / without:.3f} ×"
    return [Row("first turn under a long preset, beside: without its file", ms(median(ours)), ms(without), ratio)]


def story(number: int, words: int) -> str:
    """A text of its own for each number, from its first word on."""
    step = 2 * number + 1
    told = (WORDS[(number + at * step + at // len(WORDS)) % len(WORDS)] for at in range(words))
    return f"Number {number}. {' '.join(told)}."


def answered(tab: Tab, words: str) -> float:
    """Seconds to the first piece; returns when the answer has ended."""
    first = tab.say(words)
    tab.until("generation.done")
    return first


def _returning(ours: Took, straight: Took, replays: list[float]) -> list[Row]:
    warm = median(ours.warm)
    first = f"{len(ours.returning)} returns, first token"
    return [
        Row(
            "warm turn, first token, beside: straight", ms(warm), ms(median(straight.warm)), _times(warm, straight.warm)
        ),
        at_most(f"{first}, beside: warm", median(ours.returning), warm, RETURNING),
        at_most(f"{first}, p95, beside: warm", quantile(ours.returning, 0.95), warm, TAIL),
        Row(
            "the same, beside: straight save + restore", ms(median(ours.returning)), ms(median(straight.returning)),
            _times(median(ours.returning), straight.returning),
        ),
        Row(
            "the same, beside: straight, read again", ms(median(ours.returning)), ms(median(replays)),
            _times(median(ours.returning), replays),
        ),
    ]  # fmt: skip


def _others(prewarmed: list[float], after: Took) -> list[Row]:
    """Beside the warm turns of the same round: histories have grown since the first, on another process."""
    warm, returning = median(after.warm), after.returning
    return [
        at_most("prewarmed, beside: warm", median(prewarmed), warm, PREWARMED),
        at_most("returns after a restart, beside: warm", median(returning), warm, RETURNING),
        at_most("returns after a restart, p95, beside: warm", quantile(returning, 0.95), warm, TAIL),
    ]


def _times(ours: float, beside: list[float]) -> str:
    return f"{ours / median(beside):.3f} ×"


def _first_turn(person: Person, fields: dict[str, Any]) -> float:
    with person.tab(person.conversation(**fields)) as tab:
        return answered(tab, "Hello.")


def _free_a_slot() -> None:
    """The one that is longest unused, as if its person had gone for good."""
    slot = Slot.objects.filter(phase=Slot.Phase.IDLE).order_by("used_at").first()
    if slot and not Slot.objects.filter(phase=Slot.Phase.FREE, condition=Slot.Condition.READY).exists():
        leases.revoke(slot.pk, slot.fence)


def _all_parked() -> bool:
    """Everybody in a slot has gone to read what was said."""
    newest = Park.objects.filter(
        server=OuterRef("server"), holder=OuterRef("holder"), state=Park.State.READY, saved_at__gte=OuterRef("used_at")
    )
    return not Slot.objects.filter(~Exists(newest), ~Q(phase=Slot.Phase.FREE)).exists()


def _idle(where: str) -> bool:
    return Slot.objects.filter(holder=where, phase=Slot.Phase.IDLE, kv_tokens__gt=0).exists()


def _is_parked() -> bool:
    ready = Park.objects.filter(state=Park.State.READY, holder__isnull=False)
    return any(prefixes.is_one(holder) for holder in ready.values_list("holder", flat=True) if holder)
