"""The slots, and the one loop that serves them all: batches, prefix caches, deferral, cancellation.

As in llama-server one batch is decoded at a time for all slots, and tasks are looked at only between two batches: a
cancel, a slot action or a new request waits for the running one, and a long prefill holds its neighbours up by one
batch at a time. Times are the event loop's.
"""

import asyncio
import itertools
import json
import math
from collections import deque
from collections.abc import Callable
from pathlib import Path

from tests.scripted.tasks import (
    Begun,
    Cancel,
    Ended,
    Event,
    Finished,
    Generation,
    Progress,
    Refused,
    Slot,
    SlotAction,
    Task,
    Token,
)
from tests.scripted.tokens import IM_END, common_prefix

# Bytes that llama-server writes for a slot of the demo model: once, and for each model token (measured).
SAVED_ONCE, SAVED_EACH = 776, 23_056


class RamCache:
    """llama-server's cache of prompts beside its slots (`--cache-ram`), as far as who finds what again."""

    def __init__(self) -> None:
        self._kept: list[list[str]] = []

    def keep(self, tokens: list[str]) -> None:
        if tokens and not any(kept[: len(tokens)] == tokens for kept in self._kept):
            self._kept.append(list(tokens))

    def exchange(self, slot: Slot, prompt: list[str]) -> bool:
        """Keep what the slot holds and put there what fits `prompt` best, if anything does better; whether it did.

        An empty slot is left alone (BUG C).
        """
        if not slot.tokens:
            return False
        self.keep(slot.tokens)
        held = common_prefix(slot.tokens, prompt)
        best = max(self._kept, key=lambda kept: common_prefix(kept, prompt))
        share = common_prefix(best, prompt)
        if share > held and share / len(best) > max(0.25, held / len(slot.tokens)):
            self._kept.remove(best)
            slot.tokens = list(best)
            return True
        return False

    def keep_idle(self, slots: list[Slot], *, clear: bool) -> None:
        for slot in slots:
            self.keep(slot.tokens)
            if clear:
                slot.tokens = []


class Engine:
    """`slots` slots of `n_ctx` tokens, decoded `batch` prompt tokens at a time. Rates are tokens per second."""

    def __init__(
        self, *, slots: int, n_ctx: int, batch: int, prefill_rate: float, rate: float,
        cache_ram: bool = False, kv_unified: bool = False, similarity: float = 0.0, goes_back: bool = True,
    ) -> None:  # fmt: skip
        self._ram = RamCache() if cache_ram else None
        self._unified = kv_unified
        self._similarity = similarity
        self._goes_back = goes_back
        self.n_ctx, self.batch, self.prefill_rate, self.rate = n_ctx, batch, prefill_rate, rate
        self.slots = [Slot(number) for number in range(slots)]
        self.deferred: deque[Generation | SlotAction] = deque()
        self.on_deferred: Callable[[int], None] = lambda count: None
        self.last_result = -math.inf  # when anybody last got a token or progress
        self.totals = {"prompt": 0, "cached": 0, "predicted": 0, "decodes": 0}
        self._tasks: deque[Task] = deque()
        self._bell = asyncio.Event()
        self._numbers = itertools.count()

    # What the routes may do

    def post(self, task: Task) -> None:
        """Hand in a task; nothing is ever refused here, it waits as long as it must."""
        if isinstance(task, Generation):
            task.id_task = next(self._numbers)
        else:
            next(self._numbers)
        self._tasks.append(task)
        self._bell.set()

    async def act(self, slot: int, act: Callable[[Slot], dict[str, object]]) -> dict[str, object]:
        done: asyncio.Future[dict[str, object]] = asyncio.get_running_loop().create_future()
        self.post(SlotAction(slot % len(self.slots), act, done))
        return await done

    @property
    def processing(self) -> int:
        return sum(slot.running is not None for slot in self.slots)

    # The loop

    async def run(self) -> None:
        while True:
            self._bell.clear()
            while self._tasks:
                self._take(self._tasks.popleft())
            prefills, decodes, wait = self._plan()
            if not prefills and not decodes:
                await self._idle(wait)
                continue
            for slot, count in prefills:
                slot.queued = count
            # A running decode cannot be interrupted, whatever is asked meanwhile.
            await asyncio.sleep(sum(count / self._prefill_rate(slot) for slot, count in prefills))
            self._decode(prefills, decodes)

    async def _idle(self, seconds: float) -> None:
        timeout = None if math.isinf(seconds) else max(seconds, 0)
        try:
            await asyncio.wait_for(self._bell.wait(), timeout)
        except TimeoutError:
            return

    def _plan(self) -> tuple[list[tuple[Slot, int]], list[Slot], float]:
        """The next batch: prompt tokens by slot, slots whose next token is due, and how long until one will be."""
        room, now = self.batch, asyncio.get_running_loop().time()
        prefills: list[tuple[Slot, int]] = []
        decodes: list[Slot] = []
        wait = math.inf
        for slot in self.slots:
            run = slot.running
            if run is None:
                continue
            if run.prefilling:
                count = min(room, len(run.prompt) - len(slot.tokens))
                room -= count
                prefills += [(slot, count)] if count else []
            elif run.due <= now:
                decodes.append(slot)
            else:
                wait = min(wait, run.due - now)
        return prefills, decodes, wait

    def _prefill_rate(self, slot: Slot) -> float:
        assert slot.running is not None
        return slot.running.script.prefill or self.prefill_rate

    def _decode(self, prefills: list[tuple[Slot, int]], decodes: list[Slot]) -> None:
        self.totals["decodes"] += 1
        self.last_result = asyncio.get_running_loop().time()
        for slot, count in prefills:
            self._prefill(slot, count)
        for slot in decodes:
            run = slot.running
            if run is not None:
                slot.tokens.append(run.generated[-1])
                self._sample(slot, run)

    def _prefill(self, slot: Slot, count: int) -> None:
        run = slot.running
        if run is None:
            return
        slot.queued = 0
        start = len(slot.tokens)
        slot.tokens += run.prompt[start : start + count]
        run.processed += count
        self.totals["prompt"] += count
        run.tell(self._progress(run))
        if not run.prefilling:
            run.first_token = run.due = asyncio.get_running_loop().time()
            self._sample(slot, run)

    def _progress(self, run: Generation) -> Progress:
        taken = int((asyncio.get_running_loop().time() - run.started) * 1000)
        return Progress(len(run.prompt), run.cached, run.cached + run.processed, taken)

    def _sample(self, slot: Slot, run: Generation) -> None:
        """The next token, by the script; the sampled token itself enters the cache with the next decode only."""
        script, position = run.script, len(run.generated)
        if script.fault in ("hang", "wedge") and position >= script.after:
            run.due = math.inf
            return
        if script.fault in ("error", "end") and position >= script.after:
            self._release(slot, Ended("the script says so" if script.fault == "error" else ""))
            return
        piece = run.answer.token(run.said + position, ignore_eos=run.ignore_eos)
        run.generated.append(piece)
        self.totals["predicted"] += 1
        run.tell(Token(piece))
        run.due += 1 / (script.rate or self.rate)
        full = len(run.prompt) + len(run.generated) >= self.n_ctx
        limit = math.inf if run.max_tokens is None else max(1, run.max_tokens)  # 0 generates one, as in llama-server
        if piece == IM_END:
            self._release(slot, Finished("stop"))
        elif full or len(run.generated) >= limit:
            self._release(slot, Finished("length"))

    # Tasks

    def _take(self, task: Task) -> None:
        if isinstance(task, Cancel):
            self._cancel(task.generation)
        elif isinstance(task, SlotAction):
            self._act(task)
        else:
            if self._ram is not None and task.id_slot != -1:
                # Before it is known whether the slot is busy: that is llama-server's BUG A. What is being answered
                # there goes on in the newcomer's text.
                asked = self.slots[task.id_slot % len(self.slots)]
                if self._ram.exchange(asked, task.prompt) and asked.running is not None:
                    asked.running.answer = task.answer
            if (slot := self._slot_for(task)) is None:
                self._defer(task)
            else:
                self._launch(slot, task)

    def _defer(self, task: Generation | SlotAction) -> None:
        self.deferred.append(task)
        self.on_deferred(len(self.deferred))

    def _act(self, action: SlotAction) -> None:
        slot = self.slots[action.slot]
        if slot.running is not None:
            self._defer(action)
        elif not action.done.cancelled():
            # Unlike a generation's end this wakes nobody who waits: llama-server's lost wake-up (facts, BUG B).
            action.done.set_result(action.act(slot))

    def _slot_for(self, task: Generation) -> Slot | None:
        if task.id_slot != -1:
            slot = self.slots[task.id_slot % len(self.slots)]
            return None if slot.running else slot
        idle = [slot for slot in self.slots if slot.running is None]
        alike = {slot: common_prefix(slot.tokens, task.prompt) / len(task.prompt) for slot in idle}
        if self._similarity and alike and max(alike.values()) > self._similarity:
            return max(idle, key=lambda slot: alike[slot])
        return min(idle, key=lambda slot: (slot.last_used, -slot.id), default=None)

    def _launch(self, slot: Slot, task: Generation) -> None:
        task.on_start(slot.id)
        slot.running = slot.last = task
        if self._ram is not None:
            self._ram.keep_idle([other for other in self.slots if other.running is None], clear=self._unified)
        task.started = asyncio.get_running_loop().time()
        if len(task.prompt) >= self.n_ctx:
            self._release(slot, Refused(400, self._overflow(len(task.prompt))))
            return
        kept = common_prefix(slot.tokens, task.prompt) if task.cache_prompt else 0
        if not self._goes_back and kept < len(slot.tokens):
            kept = 0
        # At least one token is always evaluated again: there is nothing to sample from otherwise.
        task.cached = min(kept, len(task.prompt) - 1)
        self.totals["cached"] += task.cached
        del slot.tokens[task.cached :]
        task.tell(Begun())
        task.tell(self._progress(task))

    def _overflow(self, tokens: int) -> dict[str, object]:
        return {
            "code": 400,
            "message": f"request ({tokens} tokens) exceeds the available context size ({self.n_ctx} tokens), "
            "try increasing it",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": tokens,
            "n_ctx": self.n_ctx,
        }

    def _cancel(self, generation: Generation) -> None:
        if generation in self.deferred:
            self.deferred.remove(generation)
            generation.tell(Ended())
            return
        for slot in self.slots:
            if slot.running is generation and generation.script.fault != "wedge":
                self._release(slot, Ended())

    def _release(self, slot: Slot, event: Event) -> None:
        run = slot.running
        assert run is not None
        slot.running = None
        slot.last_used = asyncio.get_running_loop().time()
        run.tell(event)
        self._wake_one(slot.id)

    def _wake_one(self, id_slot: int) -> None:
        """Exactly one deferred task moves on: one pinned to this slot if there is any, else the oldest."""
        if not self.deferred:
            return
        pinned = (task for task in self.deferred if isinstance(task, Generation) and task.id_slot == id_slot)
        task = next(pinned, self.deferred[0])
        self.deferred.remove(task)
        self._tasks.appendleft(task)


# Slot actions


def erase(slot: Slot) -> dict[str, object]:
    held = len(slot.tokens)
    slot.tokens = []
    return {"id_slot": slot.id, "n_erased": held}


def saving(path: Path, fewer: int = 0) -> Callable[[Slot], dict[str, object]]:
    def save(slot: Slot) -> dict[str, object]:
        held = slot.tokens[: max(0, len(slot.tokens) - fewer)]
        path.write_text(json.dumps(held), encoding="utf-8", errors="surrogatepass")
        return {
            "id_slot": slot.id, "filename": path.name, "n_saved": len(held), "n_written": _size(held),
            "timings": {"save_ms": 0.1},
        }  # fmt: skip

    return save


def restoring(path: Path, n_ctx: int) -> Callable[[Slot], dict[str, object]]:
    """Whatever goes wrong, the slot is empty afterwards and the answer holds an "error" (as in llama-server)."""

    def restore(slot: Slot) -> dict[str, object]:
        slot.tokens = []
        try:
            held = json.loads(path.read_bytes())
            readable = isinstance(held, list) and len(held) <= n_ctx
        except (OSError, ValueError):
            readable = False
        if not readable:
            sentence = "No available space in KV cache or invalid slot save file"
            return {"error": f"Unable to restore slot: {sentence}"}
        slot.tokens = held
        return {
            "id_slot": slot.id, "filename": path.name, "n_restored": len(held), "n_read": _size(held),
            "timings": {"restore_ms": 0.1},
        }  # fmt: skip

    return restore


def _size(tokens: list[str]) -> int:
    """What the real server's file would have."""
    return SAVED_ONCE + SAVED_EACH * len(tokens)
