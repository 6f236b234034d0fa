"""Seconds from sending a message to the first piece of its answer: websocket → web → worker → server, and straight.

Short messages in a warm conversation, the same ones on both sides, one side after the other. Once they come out of
nothing, as a program sends them; and once somebody types them first, as on the page, which tells that.
"""

import time

from tests.benchmarks.figures import Row, added, median, quantile
from tests.benchmarks.ours import Person
from tests.benchmarks.straight import Straight

MESSAGES = ("And then?", "Say more.", "Is it so?", "Go on.", "What else?", "How so?")
SYSTEM = "Be brief."
TOKENS = 4
BEGIN_ANEW = 20  # turns; a longer history would cost both sides ever more
TYPING_SECONDS = 2.0  # a short message; hints of one person count as often


def measure(person: Person, straight: Straight, pairs: int, *, typing: float = 0.0) -> list[Row]:
    """The median and the tail of what we add. The first turn after each beginning is not counted: it is not warm.

    `straight` must have another slot than our conversation, which gets the first free one. `typing`: seconds that each
    message of ours takes somebody.
    """
    where = person.conversation(system_prompt=SYSTEM, params={"temperature": 0, "max_tokens": TOKENS})
    ours: list[float] = []
    beside: list[float] = []
    history: list[dict[str, str]] = []
    turn = 0
    with person.tab(where) as tab:
        while len(ours) < pairs:
            words, anew = MESSAGES[turn % len(MESSAGES)], turn % BEGIN_ANEW == 0
            history = [{"role": "system", "content": SYSTEM}] if anew else history
            if typing:
                tab.send("typing", conversation=where)
                time.sleep(typing)
            first = tab.say(words, **({"parent": None} if anew else {}))
            tab.until("generation.done")
            history.append({"role": "user", "content": words})
            said = straight.ask(history, max_tokens=TOKENS)
            history.append({"role": "assistant", "content": said.text})
            if not anew:
                ours.append(first)
                beside.append(said.first)
            turn += 1
    return rows("first token of what was typed" if typing else "first token", ours, beside)


def rows(what: str, ours: list[float], beside: list[float]) -> list[Row]:
    differences = [mine - other for mine, other in zip(ours, beside, strict=True)]
    result = [added(f"{what}, median", median(ours), median(beside), median(differences), 0.010)]
    for name, share in (("p95", 0.95), ("p99", 0.99)):
        mine, other = quantile(ours, share), quantile(beside, share)
        result.append(added(f"{what}, {name}", mine, other, mine - other, 0.020))
    return result
