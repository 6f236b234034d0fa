"""Starts the parts in order, keeps them running, and stops them in reverse order.

Promises: a part that ends is started again, after 0.5 s at first and up to 30 s when it keeps ending, and the log
says so; a part never runs beside its former self; whatever ends `up`, its parts end too (see `parts`).
"""

import asyncio
import os
import signal
import subprocess
from asyncio.subprocess import Process
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from chatbackend.embedded.part_log import repeat, say
from chatbackend.embedded.parts import Account, CannotStart, Part, dies_with_parent, try_lock

FIRST_PAUSE = 0.5  # seconds before a part that ended is started again, doubled each time
LONGEST_PAUSE = 30.0
STEADY_AFTER = 60.0  # a part that ran this long begins again with the first pause
FORMER_SELF_WITHIN = 30.0
READY_POLL = 0.1  # seconds between two looks whether a part is ready, growing
LONGEST_READY_POLL = 1.0
FULL_DISK = "No space left on device"


class Running:
    """A part and the process it has at the moment."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.process: Process | None = None
        self.reader: asyncio.Task[None] | None = None
        self.keeper: asyncio.Task[None] | None = None
        self.last_lines: deque[str] = deque(maxlen=50)
        self.started_at = 0.0

    async def spawn(self) -> None:
        """Start the process. Raises CannotStart or OSError."""
        part = self.part
        held = await _claim(part)
        try:
            part.prepare()
            self.last_lines.clear()
            self.started_at = asyncio.get_running_loop().time()
            self.process = await _spawn(
                part.command, part.env, part.cwd, part.account, part.stop_signal, (*part.pass_fds, held)
            )
        finally:
            os.close(held)  # the process has its own copy
        self.reader = asyncio.create_task(_relay(self.process, part.name, self.last_lines))

    async def ended(self) -> str:
        """Waits for the process to end; returns how it ended, in words."""
        assert self.process is not None
        assert self.reader is not None
        code = await self.process.wait()
        await asyncio.wait({self.reader}, timeout=1)  # a grandchild may hold the pipe open
        return in_words(code)

    async def until_ready(self) -> bool:
        """Whether the part became ready; False when it ended first, was not ready in time, or has no disk left."""
        loop = asyncio.get_running_loop()
        deadline = self.started_at + self.part.ready_within
        pause = READY_POLL
        while self.process is not None and self.process.returncode is None and loop.time() < deadline:
            if self.part.ready is None or await self.part.ready():
                return True
            if any(FULL_DISK in line for line in self.last_lines):
                return False
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LONGEST_READY_POLL)
        return False


class Supervisor:
    """All running parts of one `up`. `give_up` is called when one can no longer be watched, for `fault`."""

    def __init__(self, give_up: Callable[[], None] = lambda: None) -> None:
        self._all: list[Running] = []
        self._stopping = False
        self._hurry = asyncio.Event()
        self._give_up = give_up
        self.fault: BaseException | None = None

    async def start(self, part: Part) -> None:
        """Start a part without which `up` is nothing; returns when it is ready. Raises CannotStart."""
        running = Running(part)
        self._all.append(running)
        await _spawn_or_refuse(running)
        if not await running.until_ready():
            raise CannotStart(await _why_not_ready(running))
        say("%s is ready", part.name)
        self._watch(running, self._keep(running, announced=True))

    def start_unwatched(self, part: Part) -> None:
        """Start a part that may come later or never: it is kept running all the same."""
        running = Running(part)
        self._all.append(running)
        self._watch(running, self._keep_from_the_start(running))

    async def stop(self) -> None:
        """Stop everything, the last started first. Safe to call at any moment."""
        self._stopping = True
        for running in reversed(self._all):
            await self._stop_one(running)

    def hurry(self) -> None:
        """Do not wait any longer for parts to stop by themselves: kill them."""
        self._hurry.set()

    def _watch(self, running: Running, keeping: Coroutine[None, None, None]) -> None:
        running.keeper = asyncio.create_task(keeping)
        running.keeper.add_done_callback(self._watched)

    def _watched(self, keeper: asyncio.Task[None]) -> None:
        if not keeper.cancelled() and (error := keeper.exception()):
            self.fault = error
            self._give_up()

    async def _keep_from_the_start(self, running: Running) -> None:
        pause = FIRST_PAUSE
        while not await self._try_again(running, pause, "could not be started"):
            pause = min(pause * 2, LONGEST_PAUSE)
        await self._keep(running, announced=False)

    async def _keep(self, running: Running, announced: bool) -> None:
        pause = FIRST_PAUSE
        while not self._stopping:
            if not announced and running.part.ready and await running.until_ready():
                say("%s is ready", running.part.name)
            how = await running.ended()
            if self._stopping:
                return
            if asyncio.get_running_loop().time() - running.started_at > STEADY_AFTER:
                pause = FIRST_PAUSE
            say("%s ended (%s); starting it again in %g s", running.part.name, how, pause)
            await asyncio.sleep(pause)
            while not await self._try_again(running, pause, "could not be started again"):
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            pause = min(pause * 2, LONGEST_PAUSE)
            announced = False

    async def _try_again(self, running: Running, pause: float, failed: str) -> bool:
        try:
            await running.spawn()
        except (CannotStart, OSError) as error:
            say("%s %s (%s); next try in %g s", running.part.name, failed, error, pause)
            return False
        return True

    async def _stop_one(self, running: Running) -> None:
        process, part = running.process, running.part
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.send_signal(part.stop_signal)
            if not await self._ends_within(process, part.stop_within):
                say("%s did not stop by itself: killed", part.name)
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            await running.ended()
        if running.keeper is not None:
            running.keeper.cancel()

    async def _ends_within(self, process: Process, seconds: float) -> bool:
        end = asyncio.create_task(process.wait())
        hurry = asyncio.create_task(self._hurry.wait())
        done, _ = await asyncio.wait({end, hurry}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        return end in done


async def run_to_end(
    name: str, command: tuple[str, ...], env: Mapping[str, str], cwd: Path, account: Account | None = None
) -> None:
    """Run a step that ends by itself, its output in the log. Raises CannotStart with the telling line of it."""
    last_lines: deque[str] = deque(maxlen=50)
    process = await _spawn(command, env, cwd, account, signal.SIGTERM, ())
    reader = asyncio.create_task(_relay(process, name, last_lines))
    try:
        code = await process.wait()
        await reader
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    if code:
        raise CannotStart(f"{name} failed ({in_words(code)}): {telling_line(last_lines)}")


async def _claim(part: Part) -> int:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + FORMER_SELF_WITHIN
    told = False
    while (held := try_lock(part.lock)) is None:
        if loop.time() > deadline:
            raise CannotStart(f"an earlier {part.name} is still running: it holds {part.lock}")
        if not told:
            say("waiting for an earlier %s to end", part.name)
            told = True
        await asyncio.sleep(0.1)
    return held


async def _spawn(
    command: tuple[str, ...],
    env: Mapping[str, str],
    cwd: Path,
    account: Account | None,
    orphan_signal: signal.Signals,
    pass_fds: tuple[int, ...],
) -> Process:
    as_user: dict[str, Any] = {}
    if account is not None:
        as_user = {"user": account.uid, "group": account.gid, "extra_groups": []}
    # Sessions of their own: Ctrl-C in the terminal reaches `up` alone, which then stops the parts in order.
    return await asyncio.create_subprocess_exec(
        *command,
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=pass_fds,
        start_new_session=True,
        preexec_fn=dies_with_parent(orphan_signal),
        **as_user,
    )


async def _spawn_or_refuse(running: Running) -> None:
    try:
        await running.spawn()
    except OSError as error:
        raise CannotStart(f"{running.part.name} cannot be started: {error}") from error


async def _relay(process: Process, name: str, last_lines: deque[str]) -> None:
    assert process.stdout is not None
    rest = b""
    while chunk := await process.stdout.read(65536):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            last_lines.append(repeat(name, line))
        if len(rest) > 65536:  # a line without end must not grow for ever
            last_lines.append(repeat(name, rest))
            rest = b""
    if rest:
        last_lines.append(repeat(name, rest))


async def _why_not_ready(running: Running) -> str:
    name = running.part.name
    if running.process is None or running.process.returncode is None:
        waited = asyncio.get_running_loop().time() - running.started_at
        return f"{name} was not ready after {waited:.0f} s: {telling_line(running.last_lines)}"
    how = await running.ended()
    return f"{name} did not start ({how}): {telling_line(running.last_lines)}"


def telling_line(lines: deque[str]) -> str:
    """The line of a failed part's output that says why, as well as can be told."""
    for word in (FULL_DISK, "FATAL:", "error:", "Error:"):
        for line in lines:
            if word in line:
                return line.strip()
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def in_words(code: int) -> str:
    """How a process ended, from its return code."""
    if code >= 0:
        return f"exit code {code}"
    return f"killed by {signal.Signals(-code).name}"
