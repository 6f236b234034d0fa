"""Model tokens a second with every slot busy: through us and straight, the same questions, no cache on either side."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

from slots.models import Slot
from tests.benchmarks.figures import Row
from tests.benchmarks.ours import Person, Tab
from tests.benchmarks.straight import Straight
from tests.eventually import eventually

QUESTIONS = (
    "Write a long story about a river.", "Tell me everything about bread.", "Describe a winter in the mountains.",
    "Explain how a steam engine works, in detail.",
)  # fmt: skip
LEAST = 0.98


def measure(person: Person, straight: list[Straight], rounds: int, tokens: int) -> list[Row]:
    """One `Straight` per slot, of which there are at most as many as QUESTIONS."""
    ours: list[float] = []
    beside: list[float] = []
    with ThreadPoolExecutor(len(straight)) as pool:
        for _ in range(rounds):
            with ExitStack() as stack:
                tabs = [stack.enter_context(person.tab(_chat(person, tokens))) for _ in straight]
                ours.append(_speed(pool, [partial(_through_us, tab) for tab in tabs]))
            beside.append(_speed(pool, [partial(_straight, server, tokens) for server in straight]))
    mine, other = sum(ours) / rounds, sum(beside) / rounds
    what = f"tokens/s, {len(straight)} slots busy"
    result = mine / other
    return [Row(what, f"{mine:.1f}", f"{other:.1f}", f"{result:.3f} ×", f"≥ {LEAST} ×", result >= LEAST)]


def _speed(pool: ThreadPoolExecutor, asks: list[Callable[[str], int]]) -> float:
    eventually(lambda: not Slot.objects.filter(phase="busy").exists(), 30, what="every slot to be quiet")
    began = time.monotonic()
    tokens: int = sum(pool.map(lambda ask, question: ask(question), asks, QUESTIONS))
    return tokens / (time.monotonic() - began)


def _chat(person: Person, tokens: int) -> str:
    return person.conversation(params={"temperature": 0, "max_tokens": tokens})


def _through_us(tab: Tab, question: str) -> int:
    tab.say(question)
    return int(tab.until("generation.done")["usage"]["completion_tokens"])


def _straight(server: Straight, tokens: int, question: str) -> int:
    return server.ask([{"role": "user", "content": question}], max_tokens=tokens, cache_prompt=False).tokens
