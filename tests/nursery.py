"""A pytest plugin: processes of the product without the second in which each would import the same libraries.

One process for each of pytest's imports the libraries. Each process of the product is forked from it and then does what
`python WORDS` does: its environment, its settings and every module of ours are its own, read by itself. What is shared
is what nobody changes; it has no thread, no loop and no connection when it is forked.
"""

import contextlib
import fcntl
import functools
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from chatbackend.embedded.parts import die_with_parent, dies_with_parent

ROOT = Path(__file__).resolve().parent.parent
# What the product imports of others and what needs no settings for it, by those that import the most.
LIBRARIES = (
    "allauth.decorators", "allauth.headless.spec.internal", "allauth.headless.tokens.strategies.base",
    "channels.generic.websocket", "channels_redis.pubsub", "comrak", "csp.middleware", "daphne.http_protocol",
    "daphne.ws_protocol", "django.contrib.admindocs.views", "django.contrib.postgres.apps", "django.core.asgi",
    "django.core.management", "django.db.backends.postgresql.base", "django.test.signals", "drf_spectacular.utils",
    "environ", "latex2mathml.converter", "nh3", "psycopg_pool", "pygments.formatters", "redis.asyncio", "requests",
    "rest_framework.metadata", "twisted.internet.asyncioreactor", "uuid_utils.compat", "whitenoise.middleware", "yaml",
)  # fmt: skip
OURS = ("chatbackend", "conversations", "slots")
MOST_BYTES = 200_000  # of a request: the environment above all
OUT_OF_THE_WAY = 500  # descriptors from here on are at none of the places where a process wants them


class Forked:
    """A process of the product, with as much of subprocess.Popen as tests use."""

    def __init__(self, nursery: "Nursery", pid: int) -> None:
        self._nursery = nursery
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._nursery.exit_code(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        if self.poll() is None:
            ended = os.pidfd_open(self.pid)
            try:
                select.select([ended], [], [], timeout)
            finally:
                os.close(ended)
        if self.poll() is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """Pytest's end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.nursery", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
                preexec_fn=dies_with_parent(signal.SIGKILL),
            )  # fmt: skip

    def start(
        self, words: Sequence[str], output: int, environment: Mapping[str, str], pass_fds: Sequence[int]
    ) -> Forked:
        """`python WORDS`, its output going to the descriptor `output`."""
        wish = {"words": list(words), "environment": dict(environment), "places": [1, 2, *pass_fds]}
        return Forked(self, self._ask(wish, [output, output, *pass_fds]))

    def exit_code(self, pid: int) -> int | None:
        """As subprocess gives it; None while it lives."""
        found: int | None = self._ask({"ended": pid}, [])
        return found

    def close(self) -> None:
        self._socket.close()
        self._process.wait()

    def _ask(self, wish: Mapping[str, Any], descriptors: Sequence[int]) -> Any:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(wish).encode()], descriptors)
            return json.loads(self._socket.recv(MOST_BYTES))


@functools.cache
def nursery() -> Nursery:
    return Nursery()


def pytest_unconfigure() -> None:
    if nursery.cache_info().currsize:
        nursery().close()


def _serve(connection: socket.socket) -> None:
    """Until pytest ends. Returns in each new process, which then is what was asked for."""
    while True:
        request, descriptors, *_ = socket.recv_fds(connection, MOST_BYTES, 16)
        if not request:
            sys.exit()
        wish = json.loads(request)
        if "ended" in wish:
            connection.send(json.dumps(_exit_code(wish["ended"])).encode())
            continue
        nursery, pid = os.getpid(), os.fork()
        if not pid:
            die_with_parent(signal.SIGKILL, nursery)
            connection.detach()
            _arrange(descriptors, wish["places"])
            _become(wish["words"], wish["environment"])
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(json.dumps(pid).encode())


def _exit_code(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _arrange(descriptors: Sequence[int], places: Sequence[int]) -> None:
    """Have them at `places`, and no other open."""
    kept = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, OUT_OF_THE_WAY) for descriptor in descriptors]
    os.closerange(3, OUT_OF_THE_WAY)
    for descriptor, place in zip(kept, places, strict=True):
        os.dup2(descriptor, place)
        os.close(descriptor)


def _become(words: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    os.environ.clear()
    os.environ.update(environment)
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        del sys.modules[name]
    if words[0] == "-m":
        sys.argv = list(words[1:])
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(words)
        runpy.run_path(words[0], run_name="__main__")
    sys.exit()


def main(descriptor: int) -> None:
    for name in LIBRARIES:
        importlib.import_module(name)
    assert threading.active_count() == 1, "a fork has only the thread that forks"
    assert "twisted.internet.reactor" not in sys.modules, "two processes would share one event loop"
    with contextlib.closing(socket.socket(fileno=descriptor)) as connection:
        _serve(connection)


if __name__ == "__main__":
    main(int(sys.argv[1]))
