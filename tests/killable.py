"""A process of a test's own, to be killed and paused as accidents do it."""

import os
import signal
import subprocess
from typing import IO

from tests.nursery import Forked


class Killable:
    """Whoever inherits starts `process` with its output going to `_log`."""

    process: "subprocess.Popen[bytes] | Forked"
    _log: IO[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    def output(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def kill(self) -> None:
        """End it as a crash would; a paused one too."""
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
