"""Acquire and release by many threads at once, beside one UPDATE by key from the same threads on the same rows."""

import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from django.db import connection

from slots import leases
from slots.models import Server, Slot
from tests import factories
from tests.benchmarks.figures import Row, at_most, median, ms, quantile

THREADS = 64
SIZES = (4, 16, 64, 256)
MOST = 3.0
FLAT = 1.5  # times the p95 on the fewest slots that still counts as flat
_UPDATE = "UPDATE slots_slot SET used_at = statement_timestamp() WHERE id = %s"

Step = Callable[[int], bool]


def measure(threads: int = THREADS, sizes: tuple[int, ...] = SIZES, seconds: float = 1.0, rounds: int = 3) -> list[Row]:
    """A pair counts when a slot was free; a thread that gets none tries again at once."""
    rows, tails = [], []
    for size in sizes:
        server = factories.server(size, url=f"http://127.0.0.1:9/{uuid.uuid4()}", model="benchmark")
        slots = list(Slot.objects.filter(server=server).values_list("pk", flat=True))
        pairs: list[float] = []
        updates: list[float] = []
        with ThreadPoolExecutor(threads) as pool:
            for _ in range(rounds):
                updates += _run(pool, threads, seconds, _updating(slots))
                pairs += _run(pool, threads, seconds, _leasing(server.pk, threads))
        Server.objects.filter(pk=server.pk).update(state=Server.State.RETIRED, boot=None)
        what = f"lease + release, {threads} threads, {size} slots"
        rows.append(at_most(f"{what}, median", median(pairs), median(updates), MOST))
        tails.append(quantile(pairs, 0.95))
        rows.append(Row(f"{what}, p95", ms(tails[-1]), ms(quantile(updates, 0.95)), ""))
    flat = max(tails) / tails[0]
    return [
        *rows,
        Row("p95 of the most slots by that of the fewest", "", "", f"{flat:.2f} ×", f"≤ {FLAT} ×", flat <= FLAT),
    ]


def _updating(slots: list[int]) -> Step:
    def step(thread: int) -> bool:
        with connection.cursor() as cursor:
            cursor.execute(_UPDATE, [slots[thread % len(slots)]])
        return True

    return step


def _leasing(server: int, threads: int) -> Step:
    holders = [uuid.uuid4() for _ in range(threads)]
    keep: dict[int, bool] = {}

    def step(thread: int) -> bool:
        # As a claim does, which reads whether its head keeps a slot together with the head.
        grant = leases.acquire(holders[thread], factories.WORKER, [server], keeps=keep.get(thread, False))
        keep[thread] = grant is not None
        if grant is None:
            return False
        leases.release(grant, 100, 7)
        return True

    return step


def _run(pool: ThreadPoolExecutor, threads: int, seconds: float, step: Step) -> list[float]:
    """The seconds that each step took that did something, of all threads."""
    together = threading.Barrier(threads)

    def work(thread: int) -> list[float]:
        took = []
        connection.ensure_connection()
        together.wait()
        until = time.monotonic() + seconds
        while (began := time.monotonic()) < until:
            if step(thread):
                took.append(time.monotonic() - began)
        connection.close()
        return took

    return [one for each in pool.map(work, range(threads)) for one in each]
