"""The supervisor with small processes in place of the real parts."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from chatbackend.embedded.part_log import logger
from chatbackend.embedded.parts import CannotStart, Part, try_lock
from chatbackend.embedded.supervisor import Supervisor, in_words, run_to_end, telling_line
from tests.eventually import eventually
from tests.processes import ROOT, alive

SLEEP = "import time; time.sleep(60)"


class Lines(list[str]):
    """What the log says, as `part: text`."""


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Lines:
    lines = Lines()
    monkeypatch.setattr(logger, "handle", lambda record: lines.append(f"{record.part}: {record.getMessage()}"))
    monkeypatch.setattr(logger, "level", 10)
    return lines


def python_part(
    tmp_path: Path,
    code: str,
    *arguments: str,
    name: str = "part",
    ready: Callable[[], Awaitable[bool]] | None = None,
    ready_within: float = 10,
    stop_within: float = 15,
) -> Part:
    command = (sys.executable, "-u", "-c", code, *arguments)
    lock = tmp_path / f"{name}.lock"
    return Part(
        name, command, dict(os.environ), tmp_path, lock, ready, ready_within=ready_within, stop_within=stop_within
    )


async def soon(check: Callable[[], bool], what: str) -> None:
    """`eventually` for a check that the event loop must run beside."""
    await asyncio.to_thread(eventually, check, 15, what=what)


async def true() -> bool:
    return True


async def false() -> bool:
    return False


async def test_a_part_that_ends_is_started_again_after_longer_and_longer_pauses(tmp_path: Path, log: Lines) -> None:
    supervisor = Supervisor()
    supervisor.start_unwatched(python_part(tmp_path, "print('hello')"))
    await soon(lambda: log.count("part: hello") == 3, "third start")
    await supervisor.stop()
    said = [line for line in log if "starting it again" in line]
    assert said[0] == "up: part ended (exit code 0); starting it again in 0.5 s"
    assert said[1] == "up: part ended (exit code 0); starting it again in 1 s"


async def test_a_killed_part_is_started_again_and_the_signal_is_named(tmp_path: Path, log: Lines) -> None:
    supervisor = Supervisor()
    await supervisor.start(python_part(tmp_path, f"import os; print(os.getpid()); {SLEEP}", ready=true))
    await soon(lambda: len(log) == 2, "its process number")
    os.kill(int(log[-1].split()[-1]), signal.SIGKILL)
    await soon(lambda: sum("part: " in line for line in log) == 2, "second start")
    await supervisor.stop()
    assert "up: part ended (killed by SIGKILL); starting it again in 0.5 s" in log


async def test_a_part_that_ends_before_it_is_ready_is_a_refusal_with_its_own_reason(tmp_path: Path, log: Lines) -> None:
    supervisor = Supervisor()
    part = python_part(tmp_path, "print('FATAL: no room'); print('bye'); raise SystemExit(3)", ready=false)
    with pytest.raises(CannotStart, match=r"^part did not start \(exit code 3\): FATAL: no room$"):
        await supervisor.start(part)


async def test_a_part_that_is_never_ready_is_a_refusal_and_is_stopped(tmp_path: Path, log: Lines) -> None:
    supervisor = Supervisor()
    part = python_part(tmp_path, f"import os; print(os.getpid()); {SLEEP}", ready=false, ready_within=1)
    with pytest.raises(CannotStart, match="part was not ready after 1 s"):
        await supervisor.start(part)
    await supervisor.stop()
    assert not alive(int(log[-1].split()[-1]))


async def test_a_part_without_disk_is_not_waited_for(tmp_path: Path, log: Lines) -> None:
    supervisor = Supervisor()
    part = python_part(tmp_path, f"print('FATAL: No space left on device'); {SLEEP}", ready=false, ready_within=60)
    with pytest.raises(CannotStart, match=r"part was not ready after \d s: FATAL: No space left on device"):
        await supervisor.start(part)
    await supervisor.stop()


async def test_a_program_that_does_not_exist_is_a_refusal(tmp_path: Path) -> None:
    part = Part("ghost", ("/no/such/program",), {}, tmp_path, tmp_path / "lock")
    with pytest.raises(CannotStart, match=r"ghost cannot be started: .*No such file"):
        await Supervisor().start(part)


async def test_parts_stop_in_reverse_order(tmp_path: Path, log: Lines) -> None:
    supervisor = Supervisor()
    code = f"import signal, sys; signal.signal(15, lambda *_: sys.exit(print('bye'))); print('up'); {SLEEP}"
    for name in ("first", "second", "third"):
        await supervisor.start(python_part(tmp_path, code, name=name, ready=true))
    await soon(lambda: sum(line.endswith(": up") for line in log) == 3, "all started")
    await supervisor.stop()
    assert [line for line in log if line.endswith("bye")] == ["third: bye", "second: bye", "first: bye"]


async def test_ctrl_c_in_the_terminal_does_not_reach_the_parts(tmp_path: Path, log: Lines) -> None:
    supervisor = Supervisor()
    await supervisor.start(python_part(tmp_path, f"import os; print(os.getpid()); {SLEEP}", ready=true))
    await soon(lambda: len(log) == 2, "its process number")
    part = int(log[1].split()[-1])
    assert os.getsid(part) == os.getpgid(part) == part
    await supervisor.stop()


async def test_a_part_that_ignores_the_request_to_stop_is_killed_with_its_children(tmp_path: Path, log: Lines) -> None:
    supervisor = Supervisor()
    code = (
        "import signal, subprocess, sys; signal.signal(15, signal.SIG_IGN);"
        f"child = subprocess.Popen([sys.executable, '-c', {SLEEP!r}]); print(child.pid); child.wait()"
    )
    await supervisor.start(python_part(tmp_path, code, ready=true, stop_within=0.3))
    await soon(lambda: len(log) == 2, "its child's number")
    await supervisor.stop()
    assert "up: part did not stop by itself: killed" in log
    child = int(log[1].split()[-1])
    await soon(lambda: not alive(child), "its child to end too")


async def test_hurry_ends_the_wait_for_a_part_that_stops_slowly(tmp_path: Path, log: Lines) -> None:
    supervisor = Supervisor()
    code = f"import signal; signal.signal(15, lambda *_: None); print('up'); {SLEEP}; {SLEEP}"
    await supervisor.start(python_part(tmp_path, code, ready=true))
    await soon(lambda: "part: up" in log, "started")
    stopping = asyncio.create_task(supervisor.stop())
    supervisor.hurry()
    async with asyncio.timeout(5):
        await stopping


async def test_a_part_waits_for_what_its_former_self_left_behind(tmp_path: Path, log: Lines) -> None:
    held = try_lock(tmp_path / "part.lock")
    assert held is not None
    supervisor = Supervisor()
    supervisor.start_unwatched(python_part(tmp_path, f"print('hello'); {SLEEP}"))
    await soon(lambda: "up: waiting for an earlier part to end" in log, "the wait")
    assert "part: hello" not in log
    os.close(held)
    await soon(lambda: "part: hello" in log, "the start")
    await supervisor.stop()


async def test_the_lock_is_held_for_as_long_as_anything_of_the_part_lives(tmp_path: Path, log: Lines) -> None:
    supervisor = Supervisor()
    await supervisor.start(python_part(tmp_path, SLEEP, ready=true))
    assert try_lock(tmp_path / "part.lock") is None
    await supervisor.stop()
    held = try_lock(tmp_path / "part.lock")
    assert held is not None
    os.close(held)


async def test_a_part_that_can_no_longer_be_watched_ends_the_whole_loudly(tmp_path: Path, log: Lines) -> None:
    async def broken() -> bool:
        raise ZeroDivisionError

    given_up = asyncio.Event()
    supervisor = Supervisor(given_up.set)
    supervisor.start_unwatched(python_part(tmp_path, SLEEP, ready=broken))
    async with asyncio.timeout(10):
        await given_up.wait()
    assert isinstance(supervisor.fault, ZeroDivisionError)
    await supervisor.stop()


async def test_output_is_logged_line_by_line_and_an_endless_line_is_cut(tmp_path: Path, log: Lines) -> None:
    code = r"import sys; sys.stdout.buffer.write(b'one\ntwo\xff\n' + b'x' * 200_000 + b'\nlast'); sys.stdout.flush()"
    await run_to_end("step", (sys.executable, "-c", code), dict(os.environ), tmp_path)
    assert log[:2] == ["step: one", r"step: two\xff"]
    assert log[-1] == "step: last"
    assert max(len(line) for line in log) < 5000


async def test_a_step_that_fails_is_a_refusal_with_its_reason(tmp_path: Path, log: Lines) -> None:
    code = "import sys; sys.exit('initdb: error: could not write: No space left on device')"
    with pytest.raises(CannotStart, match=r"^step failed \(exit code 1\): initdb: error: .* No space left on device$"):
        await run_to_end("step", (sys.executable, "-c", code), dict(os.environ), tmp_path)


async def test_a_step_that_is_cancelled_leaves_no_process(tmp_path: Path, log: Lines) -> None:
    code = f"import os; print(os.getpid(), flush=True); {SLEEP}"
    step = asyncio.create_task(run_to_end("step", (sys.executable, "-c", code), dict(os.environ), tmp_path))
    await soon(lambda: bool(log), "its number")
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert not alive(int(log[0].split()[-1]))


def test_parts_end_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISE, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        parts = [int(process.stdout.readline()) for _ in range(3)]
        assert all(map(alive, parts))
        process.kill()
    eventually(lambda: not any(map(alive, parts)), what="the parts to end")


# A part, and a shell script behind the leash that starts another process and waits: three numbers on standard output.
SUPERVISE = f"""
import asyncio, logging, os, sys
from pathlib import Path
from chatbackend.embedded.part_log import logger
from chatbackend.embedded.parts import Part
from chatbackend.embedded.supervisor import Supervisor

class Print(logging.Handler):
    def emit(self, record):
        if record.part != "up":
            print(record.getMessage(), flush=True)

async def main(folder):
    supervisor = Supervisor()
    child = f"{{sys.executable}} -c '{SLEEP}'"
    programs = [
        (sys.executable, "-c", "import os; print(os.getpid(), flush=True); {SLEEP}"),
        (sys.executable, "-m", "chatbackend.embedded.leash", "/bin/sh", "-c", f"{{child}} & echo $$; echo $!; wait"),
    ]
    for number, program in enumerate(programs):
        lock = folder / str(number)
        supervisor.start_unwatched(Part(str(number), program, dict(os.environ), Path.cwd(), lock))
    await asyncio.Event().wait()

logger.addHandler(Print())
logger.setLevel("INFO")
asyncio.run(main(Path(sys.argv[1])))
"""


def test_the_leash_passes_the_exit_code_on() -> None:
    command = [sys.executable, "-m", "chatbackend.embedded.leash", "/bin/sh", "-c", "exit 7"]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 7


def test_the_leash_ends_what_its_command_left_behind() -> None:
    command = [sys.executable, "-m", "chatbackend.embedded.leash", "/bin/sh", "-c", "sleep 60 >/dev/null & echo $!"]
    left = int(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    assert not alive(left)


def test_the_leash_ends_all_also_when_it_is_told_to_as_soon_as_its_command_runs() -> None:
    start = """
import os, signal, subprocess, sys
from chatbackend.embedded import leash
begin = subprocess.Popen
def begin_and_be_told(*command, **how):
    child = begin(*command, **how)
    sys.stdin.readline()  # its own child runs, too
    os.kill(os.getpid(), signal.SIGTERM)
    return child
leash.subprocess.Popen = begin_and_be_told
leash.main(sys.argv[1:])
"""
    with subprocess.Popen(
        [sys.executable, "-c", start, "/bin/sh", "-c", "sleep 60 >/dev/null & echo $!; wait"],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdin
        assert process.stdout
        left = int(process.stdout.readline())
        process.stdin.write("\n")
        process.stdin.flush()
    eventually(lambda: not alive(left), what="what its command had started to end")


def test_the_leash_kills_what_will_not_end() -> None:
    deaf = "trap '' TERM; (while :; do sleep 60; done) >/dev/null & echo $!"  # deaf before anybody can speak to it
    start = "import sys; from chatbackend.embedded import leash; leash.KILL_AFTER = 1; leash.main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", start, "/bin/sh", "-c", deaf],
        cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    eventually(lambda: not alive(int(done.stdout)), what="the deaf process to end")


@pytest.mark.parametrize(("code", "words"), [(0, "exit code 0"), (3, "exit code 3"), (-9, "killed by SIGKILL")])
def test_an_end_is_told_in_words(code: int, words: str) -> None:
    assert in_words(code) == words


def test_a_full_disk_is_the_telling_line_wherever_it_stands() -> None:
    lines = deque(["error: something", "PANIC: could not write: No space left on device", "bye"])
    assert telling_line(lines) == "PANIC: could not write: No space left on device"
    assert telling_line(deque()) == "it said nothing"
