"""llama-server for one machine: the wheel's own, or a person's build, under the flags that keep slots apart."""

import asyncio
import os
import secrets
import shlex
import shutil
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chatbackend.embedded import llama_server
from chatbackend.embedded.llama_flags import given, our_variables, refuse_ours
from chatbackend.embedded.parts import CannotStart, Part

GGUF_MAGIC = b"GGUF"
# -b bounds how long a prefill stalls the others' streams and how late a stop is noticed (facts: 1.1 s at 64 on a CPU).
EMBEDDED_BATCH = "64"
OWN_BATCH = "512"
SECRETS_OF_OTHERS = ("ADMIN_PASSWORD", "DATABASE_URL", "LLAMA_SERVERS", "METRICS_TOKEN", "REDIS_URL", "SECRET_KEY")


@dataclass(frozen=True)
class Wish:
    """What the environment asks for, checked. `own` is a person's executable, or None for the wheel's."""

    own: str | None
    model: Path
    args: tuple[str, ...]
    slots: int
    slot_context: int


def wish(environ: Mapping[str, str], slots: int, slot_context: int) -> Wish:
    """Read and check what is to be started, before anything is. Raises CannotStart."""
    own = _executable(environ.get("LLAMA_SERVER_BIN", "").strip())
    args = _words(environ.get("LLAMA_ARGS", ""))
    refuse_ours(args)
    if own is None:
        try:
            llama_server.parse(args)
        except llama_server.CannotStart as error:
            raise CannotStart(f"LLAMA_ARGS: {error}") from error
    return Wish(own, _model(environ.get("LLAMA_MODEL", "").strip()), args, slots, slot_context)


def part(
    wish: Wish, folder: Path, port: int, key_file: Path, lock: Path, cwd: Path, environ: Mapping[str, str]
) -> Part:
    """The server, keeping its parked conversations in `folder`/slots."""
    saved = folder / "slots"
    saved.mkdir(mode=0o700, exist_ok=True)
    if wish.own is None:
        program: tuple[str, ...] = (sys.executable, "-m", "chatbackend.embedded.llama_server")
    else:
        program = (sys.executable, "-m", "chatbackend.embedded.leash", wish.own)
    return Part(
        name="llama-server",
        command=(*program, *_defaults(wish), *wish.args, *isolation(wish, port, key_file, saved)),
        env=_environment(environ),
        cwd=cwd,
        lock=lock,
        ready=lambda: healthy(port),
        ready_within=float("inf"),  # a big model may load for minutes
        stop_signal=signal.SIGTERM,
    )


def isolation(wish: Wish, port: int, key_file: Path, saved: Path) -> tuple[str, ...]:
    """The flags that keep conversations apart and the server to ourselves."""
    return (
        *("-m", str(wish.model), "-np", str(wish.slots), "-c", str(wish.slots * wish.slot_context)),
        *("--no-kv-unified", "--cache-ram", "0", "-sps", "0", "--cache-reuse", "0", "--metrics"),
        *("--host", "127.0.0.1", "--port", str(port), "--api-key-file", str(key_file), "--slot-save-path", str(saved)),
    )


def _defaults(wish: Wish) -> tuple[str, ...]:
    batch = EMBEDDED_BATCH if wish.own is None else OWN_BATCH
    flags: list[str] = []
    if not given(wish.args, "-t", "--threads"):
        # Spinning threads that compete with Postgres and us collapse: one core stays free.
        flags += ["-t", str(max(1, (os.cpu_count() or 1) - 1))]
    if not given(wish.args, "-b", "--batch-size"):
        flags += ["-b", batch]
    if not given(wish.args, "-ub", "--ubatch-size"):
        flags += ["-ub", batch]
    if wish.own is None and not given(wish.args, "-lv", "--verbosity", "--log-verbosity"):
        flags += ["-lv", "2"]  # warnings: ten lines a turn would drown the rest of the log
    return tuple(flags)


def kept_port(folder: Path) -> int:
    """The port of earlier runs, so that the server keeps its address, or a free one if that is taken now."""
    path = folder / "port"
    before = path.read_text().strip() if path.exists() else ""
    for wanted in (int(before) if before.isdecimal() else 0, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", wanted))
            except (OSError, OverflowError):
                continue
            port: int = probe.getsockname()[1]
        break
    path.write_text(f"{port}\n")
    return port


def kept_key(folder: Path) -> Path:
    """The file with the server's key, made on first use, readable by us alone."""
    path = folder / "api_key"
    if not path.exists() or not path.read_text().strip():
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_text(secrets.token_urlsafe(32) + "\n")
    return path


async def healthy(port: int) -> bool:
    """Whether the server on that port has loaded its model, answered within two seconds."""
    try:
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(b"GET /health HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
                return b" 200 " in await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


def hint(environ: Mapping[str, str]) -> str | None:
    """How to use the `llama-server` on PATH, when there is one and nothing else was asked for."""
    found = shutil.which("llama-server", path=environ.get("PATH"))
    if found is None:
        return None
    return (
        f"{found} is on your PATH, but the small built-in llama-server is started; to use yours: "
        f"LLAMA_SERVER_BIN={shlex.quote(found)} LLAMA_MODEL=/path/to/model.gguf LLAMA_ARGS='-ngl 99 -fa on' make up"
    )


def _executable(named: str) -> str | None:
    if not named:
        return None
    found = shutil.which(os.path.expanduser(named))
    if found is None:
        raise CannotStart(f"LLAMA_SERVER_BIN: {named} is not a program that can be run")
    return os.path.abspath(found)


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise CannotStart(f"LLAMA_ARGS cannot be split into words: {error}") from error


def _model(named: str) -> Path:
    path = Path(named).expanduser().absolute() if named else llama_server.bundled_model()
    try:
        with path.open("rb") as file:
            magic = file.read(len(GGUF_MAGIC))
    except OSError as error:
        raise CannotStart(f"the model {path} (LLAMA_MODEL) cannot be read: {error.strerror}") from error
    if magic != GGUF_MAGIC:
        raise CannotStart(f"the model {path} (LLAMA_MODEL) is not a GGUF file")
    return path


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    dropped = {*our_variables(environ), *SECRETS_OF_OTHERS}
    kept = {name: value for name, value in environ.items() if name not in dropped}
    return kept | {"PYTHONUNBUFFERED": "1"}
