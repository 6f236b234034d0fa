"""Everything for one machine, in order: Postgres, Valkey, llama-server, migrations, the first admin, worker, web.

DATABASE_URL, REDIS_URL and LLAMA_SERVERS each replace a part, which is then not started.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import psycopg
from django.db import connection, connections

from chatbackend.accounts.sign_in_links import MINUTES
from chatbackend.embedded import llama, postgres, valkey
from chatbackend.embedded.address import addresses, answers_http
from chatbackend.embedded.first_admin import FirstAdmin, ensure_first_admin, sign_in_path
from chatbackend.embedded.part_log import say
from chatbackend.embedded.parts import CannotStart, Part
from chatbackend.embedded.paths import postgres_url, valkey_url
from chatbackend.embedded.state import own_folder
from chatbackend.embedded.supervisor import Supervisor, run_to_end
from chatbackend.embedded.unprivileged import account_for

Made = TypeVar("Made")


@dataclass
class OneMachine:
    """What one `up` was asked for. `llama` is None when LLAMA_SERVERS names servers that run already.

    `tell` prints what must not stay in the log file: the first admin's password and sign-in link.
    """

    base: Path
    state: Path
    sockets: Path
    host: str
    listener: socket.socket
    connections: int
    llama: llama.Wish | None
    tell: Callable[[str], None]
    environ: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    supervisor: Supervisor = field(init=False)

    def __post_init__(self) -> None:
        self.supervisor = Supervisor(give_up=self.stop.set)

    @property
    def port(self) -> int:
        port: int = self.listener.getsockname()[1]
        return port

    async def run(self) -> None:
        """Bring everything up and keep it so until SIGINT, SIGTERM or a closed terminal.

        Raises CannotStart, OSError or psycopg.Error when that fails; nothing runs any more by then.
        """
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                asyncio.get_running_loop().add_signal_handler(number, self._asked_to_stop)
        begun = asyncio.create_task(self._bring_up())
        asked = asyncio.create_task(self.stop.wait())
        try:
            await asyncio.wait({begun, asked}, return_when=asyncio.FIRST_COMPLETED)
            if begun.done():
                begun.result()
                await asked
        finally:
            begun.cancel()
            asked.cancel()
            with suppress(
                asyncio.CancelledError, CannotStart, OSError, psycopg.Error
            ):  # said already, or overtaken by the stop
                await begun
            self.listener.close()
            await self.supervisor.stop()
        if self.supervisor.fault:
            raise self.supervisor.fault

    def _asked_to_stop(self) -> None:
        if self.stop.is_set():
            say("killing what has not stopped yet")
            self.supervisor.hurry()
        else:
            say("stopping (once more kills)")
            self.stop.set()

    async def _bring_up(self) -> None:
        self._lock_folder().mkdir(mode=0o700, exist_ok=True)
        await self._database_and_channels()
        await run_to_end("migrate", self._manage("migrate", "--no-input"), self.environ, self.base)
        admin = await self._first_admin()
        try:
            self._llama_server()
            self.supervisor.start_unwatched(self._worker())
            await self.supervisor.start(self._web())
            self._say_where()
        finally:  # the account is there and its password is nowhere else, whatever went wrong since
            self._tell_password(admin)
        await self._tell_sign_in_link(admin)

    async def _database_and_channels(self) -> None:
        if self.environ.get("DATABASE_URL", "").strip():
            await asyncio.to_thread(check_database)
        else:
            cluster = await postgres.prepare_cluster(self.state, self.sockets)
            await self.supervisor.start(postgres.part(cluster, self._lock("postgres"), self.connections))
            await asyncio.to_thread(postgres.create_database, cluster)
            self.environ = postgres.child_environment(self.environ)
            self.environ["DATABASE_URL"] = postgres_url(self.sockets)
        if not self.environ.get("REDIS_URL", "").strip():
            own_folder(self.sockets, account_for(self.state / "postgres" / "data"))
            await self.supervisor.start(valkey.part(self.sockets, self._lock("valkey")))
            self.environ["REDIS_URL"] = valkey_url(self.sockets)

    async def _first_admin(self) -> FirstAdmin | None:
        name = self.environ.get("ADMIN_USERNAME", "").strip() or "admin"
        wished = self.environ.pop("ADMIN_PASSWORD", "")  # no part needs it
        return await asyncio.to_thread(_in_own_connection, partial(ensure_first_admin, name, wished))

    def _tell_password(self, admin: FirstAdmin | None) -> None:
        if admin is None or not admin.generated:
            return
        try:
            self.tell(f"First administrator: {admin.name}, password: {admin.generated} (shown this once)")
        except OSError:  # nobody reads our output any more
            say(
                "the password of %s could not be shown: set one by `manage.py changepassword %s`",
                admin.name,
                admin.name,
            )

    async def _tell_sign_in_link(self, admin: FirstAdmin | None) -> None:
        """Made only now that the site answers: its minutes count from here."""
        if admin is None:
            return
        path = await asyncio.to_thread(_in_own_connection, partial(sign_in_path, admin.name))
        here, *elsewhere = (address.rstrip("/") + path for address in addresses(self.host, self.port))
        try:
            self.tell(f"Sign in now: {here} (once, within {MINUTES} minutes)")
            for address in elsewhere:
                self.tell(f"or from your network: {address}")
        except OSError:
            say("the sign-in link could not be shown: make another by `manage.py sign_in_link %s`", admin.name)

    def _llama_server(self) -> None:
        if self.llama is None:
            if self.environ.get("LLAMA_SERVER_BIN"):
                say("LLAMA_SERVERS is set, so LLAMA_SERVER_BIN is not started")
            return
        if self.llama.own is None and (hint := llama.hint(self.environ)):
            say("%s", hint)
        folder = self.state / "llama"
        folder.mkdir(mode=0o700, exist_ok=True)
        port, key_file = llama.kept_port(folder), llama.kept_key(folder)
        lock = self._lock("llama-server")
        self.supervisor.start_unwatched(llama.part(self.llama, folder, port, key_file, lock, self.base, self.environ))
        self.environ["LLAMA_SERVERS"] = f"http://:{key_file.read_text().strip()}@127.0.0.1:{port}"

    def _worker(self) -> Part:
        return Part(
            name="worker",
            command=self._manage("run_worker"),
            env=self._environment(),
            cwd=self.base,
            lock=self._lock("worker"),
        )

    def _web(self) -> Part:
        fd = self.listener.fileno()
        return Part(
            name="web",
            command=(sys.executable, "-m", "chatbackend.web", "--fd", str(fd)),
            env=self._environment(),
            cwd=self.base,
            lock=self._lock("web"),
            ready=partial(answers_http, self.host, self.port),
            pass_fds=(fd,),
            stop_within=30.0,
        )

    def _environment(self) -> dict[str, str]:
        place = {"HOST": self.host, "PORT": str(self.port), "STATE_DIR": str(self.state)}
        return self.environ | place | {"PYTHONUNBUFFERED": "1"}

    def _manage(self, *words: str) -> tuple[str, ...]:
        return (sys.executable, str(self.base / "manage.py"), *words)

    def _lock_folder(self) -> Path:
        return self.state / "lock"

    def _lock(self, name: str) -> Path:
        return self._lock_folder() / name

    def _say_where(self) -> None:
        here, *elsewhere = addresses(self.host, self.port)
        say("Ready: %s", here)
        for address in elsewhere:
            say("On your network: %s", address)
        database = self.state / "postgres"
        elsewhere_too = f" and {database.resolve()}" if database.is_symlink() else ""
        say("Data: %s%s   Log: %s   Stop: Ctrl-C", self.state, elsewhere_too, self.state / "log" / "up.log")


def check_database() -> None:
    """Raises CannotStart unless the Postgres of DATABASE_URL answers."""
    given = connection.settings_dict
    try:
        psycopg.connect(**connection.get_connection_params()).close()
    except psycopg.OperationalError as error:
        place = f"{given['HOST'] or given['OPTIONS'].get('host', 'localhost')}:{given['PORT'] or 5432}"
        reason = str(error).partition("\n")[0].removeprefix("connection failed: ")
        raise CannotStart(
            f"the database {given['NAME']} at {place} (DATABASE_URL) cannot be reached: {reason}"
        ) from error


def _in_own_connection(work: Callable[[], Made]) -> Made:
    """Run `work` with the ORM and leave no connection or pool behind in this process."""
    try:
        return work()
    finally:
        connections.close_all()
        connection.close_pool()  # type: ignore[attr-defined]  # Postgres's alone
