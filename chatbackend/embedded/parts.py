"""What `up` starts: a part is one process with its name, its environment and the way to tell that it is ready."""

import ctypes
import fcntl
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

PR_SET_PDEATHSIG = 1
# Looked up before any fork: between fork and exec no lock of the loader may be needed.
_libc = ctypes.CDLL(None, use_errno=True)


class CannotStart(Exception):
    """Why `up` cannot go on, as one sentence for the person who started it."""


@dataclass(frozen=True)
class Account:
    """The user that a part runs as when `up` itself is root."""

    name: str
    uid: int
    gid: int


def nothing_to_prepare() -> None:
    """Most parts can be started as they are."""


@dataclass(frozen=True)
class Part:
    """One process of the product. Times are in seconds.

    `lock` is held by the process and everything it forks: a part is never started beside its former self.
    `prepare` runs before each start, with that lock held. `ready` answers whether the part does its work; without
    it a part counts as ready once it is started, and that is not worth a line.
    `stop_signal` asks it to end; the kernel sends it the same when `up` dies.
    """

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    lock: Path
    ready: Callable[[], Awaitable[bool]] | None = None
    account: Account | None = None
    pass_fds: tuple[int, ...] = ()
    prepare: Callable[[], None] = nothing_to_prepare
    ready_within: float = 60.0
    stop_signal: signal.Signals = signal.SIGTERM
    stop_within: float = 15.0


def dies_with_parent(stop_signal: signal.Signals) -> Callable[[], None]:
    """For a child to run before exec (`preexec_fn`): the kernel sends it `stop_signal` when we end, however we end.

    Changing the user clears the wish, so it must come after that, as it does in `preexec_fn`; and it is the parent's
    *thread* that counts, so the parent must spawn from its main thread.
    """
    return partial(die_with_parent, stop_signal, os.getpid())


def die_with_parent(stop_signal: signal.Signals, parent: int) -> None:
    """Have the kernel send `stop_signal` to this process when `parent`, its parent, ends."""
    _libc.prctl(PR_SET_PDEATHSIG, int(stop_signal))
    if os.getppid() != parent:  # it ended before the kernel knew our wish
        os._exit(1)


def try_lock(path: Path) -> int | None:
    """An open descriptor holding the lock on `path`, or None while some process holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
