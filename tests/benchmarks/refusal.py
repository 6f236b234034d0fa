"""How soon somebody is told that the queue is full."""

import time
from concurrent.futures import ThreadPoolExecutor

from conversations.models import Conversation
from tests import factories
from tests.benchmarks.figures import Row, median, ms, quantile
from tests.benchmarks.ours import Person

SOON = 0.1  # seconds


def measure(person: Person, fill: int, tries: int, at_once: int) -> list[Row]:
    """`fill`: how many wait when the queue is full. They wait for a model that nobody has."""
    crowd = factories.person("crowd")
    for _ in range(fill):
        factories.sent(factories.conversation(crowd, model="nobody has it"))
    where = person.conversation()

    def refused(_: int) -> float:
        began = time.monotonic()
        answer = person.say(where, "Hello")
        assert (answer.status_code, answer.json()["code"]) == (429, "queue_full"), answer.text
        return time.monotonic() - began

    alone = [refused(number) for number in range(tries)]
    with ThreadPoolExecutor(at_once) as pool:
        together = list(pool.map(refused, range(at_once)))
    Conversation.objects.filter(owner=crowd).delete()
    middle, tail = median(alone), quantile(alone, 0.95)
    return [
        Row("429 when full, median", ms(middle), "", "", f"≤ {SOON * 1000:g} ms", middle <= SOON),
        Row("429 when full, p95", ms(tail), "", "", f"≤ {SOON * 1000:g} ms", tail <= SOON),
        Row(f"429 when full, {at_once} at once, median", ms(median(together)), "", ""),
    ]
