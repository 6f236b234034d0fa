"""The embedded Postgres itself: its folder, its account, and what earlier lives left in it."""

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest

from chatbackend.embedded import postgres, unprivileged
from chatbackend.embedded.parts import Account, CannotStart
from chatbackend.embedded.paths import socket_dir
from chatbackend.embedded.postgres import Cluster, prepare_cluster
from chatbackend.embedded.supervisor import Supervisor
from chatbackend.embedded.unprivileged import account_for
from tests.eventually import eventually
from tests.processes import alive, open_folder


@pytest.fixture
def state() -> Iterator[Path]:
    with open_folder() as folder:
        yield folder


@pytest.fixture
def small_disk(state: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A disk of 8 MB, too small for any Postgres. Who may not mount one gets an initdb that says what it would."""
    if os.geteuid() != 0:
        (state / "bin").mkdir()
        initdb = state / "bin" / "initdb"
        initdb.write_text("#!/bin/sh\necho 'FATAL:  could not write to file: No space left on device'; exit 1\n")
        initdb.chmod(0o755)
        monkeypatch.setattr(postgres, "_binaries", lambda *_: state)
        yield state
        return
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(state), "-o", "size=8m,mode=755"], check=True)
    try:
        yield state
    finally:
        subprocess.run(["umount", str(state)], check=True)


@asynccontextmanager
async def running(state: Path) -> AsyncIterator[Cluster]:
    supervisor = Supervisor()
    try:
        cluster = await prepare_cluster(state, socket_dir(state))
        await supervisor.start(postgres.part(cluster, state / "lock", connections=20))
        await asyncio.to_thread(postgres.create_database, cluster)
        yield cluster
    finally:
        await supervisor.stop()


def ask(cluster: Cluster, statement: str) -> object:
    with psycopg.connect(host=str(cluster.sockets), port=5432, user="chat", dbname="chat", autocommit=True) as session:
        cursor = session.execute(statement)
        row = cursor.fetchone() if cursor.description else None
    return row[0] if row else None


def kill_postmaster(cluster: Cluster) -> None:
    os.kill(int((cluster.data / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)


async def answers_again(cluster: Cluster) -> None:
    await asyncio.to_thread(eventually, lambda: postgres.answers(cluster.sockets), 30, what="Postgres to answer")


async def test_data_is_found_again_and_only_the_socket_listens(state: Path) -> None:
    async with running(state) as cluster:
        ask(cluster, "CREATE TABLE kept AS SELECT 42 AS answer")
        assert ask(cluster, "SHOW listen_addresses") == ""
        assert ask(cluster, "SHOW server_encoding") == "UTF8"
    async with running(state) as cluster:
        assert ask(cluster, "SELECT answer FROM kept") == 42
    assert (state / "postgres" / "data").stat().st_mode & 0o077 == 0


async def test_a_killed_server_comes_back_with_its_data(state: Path) -> None:
    async with running(state) as cluster:
        ask(cluster, "CREATE TABLE kept AS SELECT 42 AS answer")
        kill_postmaster(cluster)
        await answers_again(cluster)
        assert ask(cluster, "SELECT answer FROM kept") == 42


async def test_a_stale_process_number_that_is_somebody_elses_by_now_harms_neither(state: Path) -> None:
    async with running(state) as cluster:
        pass
    # Of Postgres's own user: it takes nobody else's process for a Postgres.
    user = cluster.account.uid if cluster.account else None
    bystander = await asyncio.create_subprocess_exec("sleep", "60", user=user)
    try:
        for mark in (cluster.data / "postmaster.pid", cluster.sockets / ".s.PGSQL.5432.lock"):
            mark.write_text(f"{bystander.pid}\n{cluster.data}\n")
        async with running(state) as again:
            assert ask(again, "SELECT 1") == 1
        assert alive(bystander.pid)
    finally:
        bystander.kill()
        await bystander.wait()


async def test_a_damaged_or_dead_mark_is_cleared(state: Path) -> None:
    async with running(state) as cluster:
        pass
    for content in ("", "nonsense", "99999999\n"):
        (cluster.data / "postmaster.pid").write_text(content)
        postgres.clear_stale(cluster)
        assert not (cluster.data / "postmaster.pid").exists()


async def test_a_server_that_we_did_not_start_is_left_alone(state: Path) -> None:
    async with running(state) as cluster:
        postmaster = int((cluster.data / "postmaster.pid").read_text().split()[0])
        with pytest.raises(CannotStart, match=f"another Postgres \\(process {postmaster}\\) runs on "):
            postgres.clear_stale(cluster)
        assert ask(cluster, "SELECT 1") == 1


async def test_data_of_another_major_is_named_with_both_versions(state: Path) -> None:
    data = state / "postgres" / "data"
    cluster = await prepare_cluster(state, socket_dir(state))
    (data / "PG_VERSION").write_text("15\n")
    with pytest.raises(CannotStart, match=r"is of Postgres 15, and this is Postgres 18: dump it .* and move it away"):
        await prepare_cluster(state, socket_dir(state))
    assert cluster.data.resolve() == data.resolve()


async def test_a_half_made_cluster_is_made_again(state: Path) -> None:
    account = account_for(state / "postgres" / "data")
    unfinished = unprivileged.home(state, account) / "data-unfinished"
    unfinished.mkdir()
    (unfinished / "PG_VERSION").write_text("18\n")
    async with running(state) as cluster:
        assert ask(cluster, "SELECT 1") == 1
    assert not unfinished.exists()


async def test_data_under_a_closed_folder_is_found_again_and_the_folder_stays_closed(state: Path) -> None:
    above = state / "closed"
    above.mkdir(mode=0o700)
    (above / "state").mkdir()
    async with running(above / "state") as cluster:
        ask(cluster, "CREATE TABLE kept AS SELECT 42 AS answer")
    async with running(above / "state") as cluster:
        assert ask(cluster, "SELECT answer FROM kept") == 42
    assert above.stat().st_mode & 0o777 == 0o700
    remove_what_lives_elsewhere(cluster)


def remove_what_lives_elsewhere(cluster: Cluster) -> None:
    """Root's Postgres cannot enter a closed folder, so its data is not in the test's."""
    if cluster.data.is_relative_to(unprivileged.REACHABLE):
        shutil.rmtree(cluster.data.parent)


@pytest.mark.parametrize("name", ["with space", "quote'\"s", "comma,percent%20", "long" * 40])
async def test_any_folder_name_works(state: Path, name: str) -> None:
    (state / name).mkdir()
    async with running(state / name) as cluster:
        assert ask(cluster, "SELECT 1") == 1
    if not cluster.sockets.is_relative_to(state):
        shutil.rmtree(cluster.sockets)


async def test_a_virtual_environment_that_postgres_cannot_enter_is_copied(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_runs", lambda *_: False)
    me = Account("me", os.getuid(), os.getgid())  # an ordinary user's Postgres needs no account, but may have one
    monkeypatch.setattr(postgres, "account_for", lambda data: account_for(data) or me)
    async with running(state) as cluster:
        assert cluster.binaries.is_relative_to(state)
        assert ask(cluster, "SELECT 1") == 1


async def test_the_environment_of_a_person_does_not_reach_it(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "PGDATA": "/nowhere",
        "PGPORT": "1",
        "LC_ALL": "xx_XX.UTF-8",
        "PGOPTIONS": "-c nonsense=1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PGOPTIONS")  # psycopg here would use it
    async with running(state) as cluster:
        assert ask(cluster, "SELECT 1") == 1


async def test_a_full_disk_is_said_in_one_line(small_disk: Path) -> None:
    with pytest.raises(CannotStart, match=r"^initdb failed \(exit code 1\): .*No space left on device"):
        await prepare_cluster(small_disk, socket_dir(small_disk))
    assert not (small_disk / "postgres" / "data").exists()
