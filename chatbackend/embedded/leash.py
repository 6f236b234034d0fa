"""Runs a command of somebody else's making so that nothing of it outlives us.

    python -m chatbackend.embedded.leash COMMAND ARGUMENT…

A person's own llama-server may be a shell script that starts the real one: the kernel's message that `up` died
reaches the script alone. This process gets that message in its place and ends the whole process group.
Imports nothing but the standard library's small parts: it stays in memory beside the server.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from chatbackend.embedded.parts import dies_with_parent

KILL_AFTER = 10  # seconds between asking the group to end and killing it
LOOK_EVERY = 0.05


def main(command: list[str]) -> int:
    """Run `command` in our process group until it ends; returns its exit code as a shell would.

    SIGTERM is passed to the whole group. Whatever of the group is left when the command has ended, or ten seconds
    after SIGTERM, is killed: it would keep the port and the memory of the next one.
    """
    # First: who is told to end in between would end alone, and leave behind what the command has started.
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(0, signal.SIGKILL))
    signal.signal(signal.SIGTERM, _end_group)
    child = subprocess.Popen(command, preexec_fn=dies_with_parent(signal.SIGKILL))  # noqa: PLW1509
    code = child.wait()
    _end_group(signal.SIGTERM, None)
    while _others():
        time.sleep(LOOK_EVERY)
    return code if code >= 0 else 128 - code


def _end_group(number: int, _: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # the group includes us
    os.killpg(0, signal.SIGTERM)
    signal.alarm(KILL_AFTER)


def _others() -> list[int]:
    """The living processes of our group, without us."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, _, group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(group) == os.getpgid(0) and int(entry.name) != os.getpid() and state not in "ZX":
            found.append(int(entry.name))
    return found


if __name__ == "__main__":
    if os.getpgid(0) != os.getpid():  # started by hand: the group we end must be ours alone
        os.setpgid(0, 0)
    sys.exit(main(sys.argv[1:]))
