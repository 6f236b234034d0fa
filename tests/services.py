"""Pytest plugin (`-p tests.services`): a real Postgres and a real Valkey for the whole run, our own parts.

Imported before Django's settings are, which read the addresses from the environment.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from chatbackend.embedded import paths, postgres, valkey
from chatbackend.embedded.parts import Part, dies_with_parent

# What a crash of the machine would need; a crash of the process, which tests do cause, loses nothing without.
FAST = ("-c", "fsync=off", "-c", "full_page_writes=off")
START_SECONDS = 60
# Short times, so that tests of expiry wait for seconds; three heartbeats to a life as in production.
TIMINGS = {"LEASE_TTL": "2", "LEASE_HEARTBEAT": "0.5", "LEASE_REAP_GRACE": "2"}
# One person of a test may fill every slot: what the limits do is tried where it is the point.
LIMITS = {"QUEUE_RUNNING_PER_PERSON": "50", "QUEUE_WAITING_PER_PERSON": "100"}
NOT_OURS = (
    "LLAMA_SERVERS", "LLAMA_SERVER_BIN", "LLAMA_MODEL", "LLAMA_ARGS", "HOST", "PORT", "SIGNUP", "SECRET_KEY",
    "PYTHONDONTWRITEBYTECODE",  # each of some hundred processes would compile all of the product: a quarter of a second
)  # fmt: skip


@dataclass
class Service:
    """A part of the product, run for the tests: kill and start it as an accident would."""

    part: Part
    more: tuple[str, ...] = ()
    process: "subprocess.Popen[bytes]" = field(init=False)

    def start(self) -> None:
        """Start it; returns once it answers."""
        part = self.part
        part.prepare()
        as_whom = {"user": part.account.uid, "group": part.account.gid, "extra_groups": []} if part.account else {}
        self.process = subprocess.Popen(
            [*part.command, *self.more], env=dict(part.env), cwd=part.cwd, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            preexec_fn=dies_with_parent(part.stop_signal), **as_whom,  # type: ignore[call-overload]
        )  # fmt: skip
        asyncio.run(self._ready())

    async def _ready(self) -> None:
        async with asyncio.timeout(START_SECONDS):
            while self.part.ready and not await self.part.ready():  # noqa: ASYNC110  another process cannot tell us
                await asyncio.sleep(0.02)

    def stop(self) -> None:
        self.process.send_signal(self.part.stop_signal)
        self.process.wait()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def _start() -> tuple[Path, Service, Service]:
    state = Path(tempfile.mkdtemp(prefix="chatbackend-tests-"))
    state.chmod(0o711)  # as root, Postgres runs as somebody else and must get in
    sockets = paths.socket_dir(state)
    cluster = asyncio.run(postgres.prepare_cluster(state, sockets))
    database = Service(postgres.part(cluster, state / "postgres.lock", connections=200), FAST)
    cache = Service(valkey.part(sockets, state / "valkey.lock"))
    database.start()
    postgres.create_database(cluster)
    cache.start()
    for name in NOT_OURS:
        os.environ.pop(name, None)
    sys.dont_write_bytecode = False
    os.environ |= (
        TIMINGS
        | LIMITS
        | {
            "TITLES": "off",  # no more requests than a test asks for; they are tried where they are the point
            "STATE_DIR": str(state),
            "DATABASE_URL": paths.postgres_url(sockets),
            "REDIS_URL": paths.valkey_url(sockets),
        }
    )
    return state, database, cache


STATE, DATABASE, CACHE = _start()


def pytest_unconfigure() -> None:
    CACHE.stop()
    DATABASE.stop()
    shutil.rmtree(STATE)
