"""llama-servers for tests: the real one (the wheel, SmolLM2-135M) and the scripted one, each as a process of its own.

`real_llama` and `fake_llama` are fixtures; import them where pytest looks for fixtures.
"""

import ctypes
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest
import requests

from chatbackend.embedded.llama_server import bundled_model
from tests.eventually import eventually
from tests.fake_llama import FakeLlama
from tests.killable import Killable

ROOT = Path(__file__).resolve().parent.parent
# DESIGN's isolation flags: every slot its own cache, nothing kept beside the slots, batches short enough to stop in.
STRICT_FLAGS = ("--no-kv-unified", "--cache-ram", "0", "-sps", "0", "--cache-reuse", "0", "-b", "64", "-ub", "64")
API_KEY = "test-key"
PR_SET_PDEATHSIG = 1
START_SECONDS = 60
_libc = ctypes.CDLL(None)


def _die_with_parent() -> None:
    # Counts for the thread that starts the process: start servers from a thread that outlives them.
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class LlamaProcess(Killable):
    """A llama-server in a process of its own, real or scripted. `restart` and `kill` are those of a machine's owner."""

    command: Sequence[str]
    url: str
    api_key: str | None = None
    process: "subprocess.Popen[bytes]" = field(init=False)
    _log: IO[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # `close` closes it
        self.start()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def start(self) -> None:
        """Start it again on the same port; returns before it answers."""
        self.process = subprocess.Popen(
            self.command, cwd=ROOT, stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL,
            preexec_fn=_die_with_parent,
        )  # fmt: skip

    def wait_until_ready(self) -> None:
        """Returns once /health says ok; AssertionError with the process's own words if it ends instead."""
        eventually(self._healthy, START_SECONDS, what=f"{self.url} to be healthy")

    def _healthy(self) -> bool:
        if self.process.poll() is not None:
            pytest.fail(f"{' '.join(self.command)} ended with {self.process.returncode}: {self.output()}")
        try:
            return requests.get(f"{self.url}/health", timeout=2).ok
        except requests.ConnectionError:
            return False

    def restart(self) -> None:
        """Kill it and start it again on the same port; returns when it answers."""
        self.kill()
        self.start()
        self.wait_until_ready()

    def close(self) -> None:
        self.kill()
        self._log.close()


class FakeLlamaProcess(LlamaProcess):
    """The scripted server as a process, steered over its `/_control` route."""

    def script(self, **script: Any) -> None:
        """Answer by this script (fields of tests.scripted.script.Script)."""
        self._control({"script": script})

    def set(self, **behaviour: Any) -> None:
        """Change its behaviour (fields of tests.scripted.routes.Behaviour)."""
        self._control({"set": behaviour})

    def journal(self) -> dict[str, Any]:
        """Requests, calls, `most_at_once` by slot and `most_deferred` since this process started."""
        return dict(requests.get(f"{self.url}/_control", timeout=5).json())

    def _control(self, wishes: dict[str, Any]) -> None:
        requests.post(f"{self.url}/_control", json=wishes, timeout=5).raise_for_status()


@contextmanager
def real_llama_server(
    *,
    slots: int = 4,
    slot_context: int = 512,
    api_key: str | None = API_KEY,
    slot_save_path: Path | None = None,
    flags: Sequence[str] = STRICT_FLAGS,
    alias: str | None = "smollm2",
    wait: bool = True,
) -> Iterator[LlamaProcess]:
    """The real server with the bundled model on one thread; without `wait` it may still be loading."""
    port = free_port()
    command = [
        sys.executable, "-m", "chatbackend.embedded.llama_server", "--model", str(bundled_model()),
        "--port", str(port), "-np", str(slots), "-c", str(slots * slot_context), "-t", "1", "-lv", "1",
        "--metrics", "--no-webui", *flags,
    ]  # fmt: skip
    if alias is not None:
        command += ["--alias", alias]
    if api_key is not None:
        command += ["--api-key", api_key]
    if slot_save_path is not None:
        command += ["--slot-save-path", str(slot_save_path)]
    server = LlamaProcess(command, f"http://127.0.0.1:{port}", api_key)
    try:
        if wait:
            server.wait_until_ready()
        yield server
    finally:
        server.close()


@contextmanager
def fake_llama_process(*, api_key: str | None = None, **options: Any) -> Iterator[FakeLlamaProcess]:
    """The scripted server in a process; options as in tests.scripted.routes.Options."""
    port = free_port()
    command = [sys.executable, "-m", "tests.fake_llama", "--port", str(port)]
    for name, value in {**options, **({"api_key": api_key} if api_key else {})}.items():
        flag = name.replace("_", "-")
        command += [f"--{'' if value else 'no-'}{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    server = FakeLlamaProcess(command, f"http://127.0.0.1:{port}", api_key)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def real_llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaProcess]:
    """One real server for the whole run: 4 slots of 2,048 tokens, strict flags, parking on."""
    with real_llama_server(slot_context=2048, slot_save_path=tmp_path_factory.mktemp("parked")) as server:
        yield server


@pytest.fixture
def fake_llama() -> Iterator[FakeLlama]:
    """A fresh scripted server of 4 slots of 2,048 tokens, in this process."""
    with FakeLlama() as server:
        yield server


def stand_in_executable(folder: Path) -> Path:
    """An executable `llama-server` in `folder`, as a person's own build would be: the wheel behind its flags."""
    executable = folder / "llama-server"
    command = shlex.join([sys.executable, "-m", "chatbackend.embedded.llama_server"])
    executable.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {command} "$@"\n')
    executable.chmod(0o755)
    return executable
