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
from types import FrameType

from chatbackend.embedded.parts import dies_with_parent

KILL_AFTER = 10  # seconds between asking the group to end and killing it


def main(command: list[str]) -> int:
    """Run `command` in our process group until it ends; returns its exit code as a shell would."""
    child = subprocess.Popen(command, preexec_fn=dies_with_parent(signal.SIGKILL))  # noqa: PLW1509

    def end_group(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # the group includes us
        os.killpg(0, signal.SIGTERM)
        signal.alarm(KILL_AFTER)

    signal.signal(signal.SIGTERM, end_group)
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(0, signal.SIGKILL))
    code = child.wait()
    # What the command left behind would keep the port and the memory of the next one.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    if os.getpgid(0) != os.getpid():  # started by hand: the group we end must be ours alone
        os.setpgid(0, 0)
    sys.exit(main(sys.argv[1:]))
