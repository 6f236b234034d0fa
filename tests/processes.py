"""Looking at processes from outside, and the whole product as one: `manage.py up` in a folder of its own."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.eventually import eventually

ROOT = Path(__file__).resolve().parent.parent
# A developer's own settings must not reach the `up` under test.
OURS = re.compile(
    r"(PG|LLAMA_|LEASE_)\w*|HOST|PORT|STATE_DIR|DATABASE_URL|REDIS_URL|ADMIN_\w+|SIGNUP|SECRET_KEY|ALLOWED_HOSTS"
)
UP_SECONDS = 90


def alive(pid: int) -> bool:
    """Whether the process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def command_of(pid: int) -> str:
    """The command line of a process, empty once it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def processes_of(folder: Path) -> list[int]:
    """The living processes that mention `folder` in their command or environment, or work in it; not this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid() and alive(int(entry.name)):
            try:
                words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                place = os.readlink(entry / "cwd")
            except OSError:
                continue
            if os.fsencode(folder) in words or Path(place).is_relative_to(folder):
                found.append(int(entry.name))
    return found


def nothing_left(folder: Path, timeout: float = 30) -> None:
    """Waits until no process of `folder` lives; AssertionError with the commands of those that stay."""

    def gone() -> bool:
        commands = [command_of(pid) for pid in processes_of(folder)]
        assert not any(commands), commands
        return True

    eventually(gone, timeout, what=f"the processes of {folder} to end")


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter, as pytest's tmp_path is not: Postgres is not root."""
    folder = Path(tempfile.mkdtemp(prefix="chatbackend-test-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Up:
    """One `manage.py up` on `state`, and what it printed."""

    def __init__(self, state: Path, **environ: str) -> None:
        self.state = state
        self.output_file = state.parent / f"{state.name}.out"
        with self.output_file.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "up"],
                cwd=ROOT, env=self.environment(state, **environ), start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip

    @staticmethod
    def environment(state: Path, **environ: str) -> dict[str, str]:
        """What `up` is started with: this process's environment without settings of ours, and `environ`."""
        kept = {name: value for name, value in os.environ.items() if not OURS.fullmatch(name)}
        return kept | {"PORT": "0", "STATE_DIR": str(state), "ADMIN_PASSWORD": "pw"} | environ

    @property
    def output(self) -> str:
        return self.output_file.read_text(errors="replace")

    def says(self, words: str, timeout: float = UP_SECONDS, times: int = 1) -> str:
        """Waits until `words` (a regular expression) were printed so often; returns the last line that has them."""

        def said() -> str:
            lines = [line for line in self.output.splitlines() if re.search(words, line)]
            return lines[times - 1] if len(lines) >= times else ""

        def said_or_ended() -> str:
            if (line := said()) or self.process.poll() is None:
                return line
            return said() or "ended"

        line = eventually(said_or_ended, timeout, what=f"{words!r} in the output of up")
        assert re.search(words, line), f"up ended without saying {words!r}:\n{self.output}"
        return line

    @property
    def address(self) -> str:
        """Waits until the site is up; its address with a closing slash."""
        return self.says(r"Ready: http").split()[-1]

    def pid_of(self, words: str) -> int:
        """Our child whose command contains `words`."""
        for pid in processes_of(self.state):
            try:
                parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except FileNotFoundError:
                continue  # ended meanwhile
            if int(parts[1]) == self.process.pid and words in command_of(pid):
                return pid
        raise AssertionError(f"no child of up has {words!r} in its command")

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def ends(self, timeout: float = 60) -> int:
        """Waits for `up` to end; its exit code."""
        return self.process.wait(timeout)

    def close(self) -> None:
        """End it, however far it got; its parts end with it."""
        if self.process.poll() is None:
            self.interrupt()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        nothing_left(self.state)


@contextmanager
def running_up(state: Path, **environ: str) -> Iterator[Up]:
    """`manage.py up` on `state` with these variables; ended, if it has not by itself."""
    up = Up(state, **environ)
    try:
        yield up
    finally:
        up.close()
