"""`manage.py up`, the whole product on real parts: what it prints, how it ends, and what it leaves behind."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.eventually import eventually
from tests.processes import ROOT, Up, alive, nothing_left, open_folder, processes_of, running_up

ONCE = {"ADMIN_PASSWORD": "", "LLAMA_SERVERS": "http://127.0.0.1:9"}


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    """One that runs through this module's tests; they may kill its parts but not it. On its PATH is a llama-server."""
    with open_folder() as folder:
        program = folder / "llama-server"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        with running_up(folder / "state", PATH=f"{folder}:{os.environ['PATH']}") as up:
            assert up.address
            yield up


@pytest.fixture(scope="module")
def up_for_all() -> Iterator[Up]:
    """One that is bound to all addresses, and whose llama-server ends as soon as it is started."""
    with open_folder() as folder:
        program = folder / "broken"
        program.write_text("#!/bin/sh\necho no GPU here; exit 3\n")
        program.chmod(0o755)
        with running_up(folder / "state", HOST="0.0.0.0", LLAMA_SERVER_BIN=str(program)) as up:
            assert up.address
            yield up


@pytest.fixture(scope="module")
def stopped() -> Iterator[Up]:
    """One that was there once, with a password of its own making, and was stopped by Ctrl-C."""
    with open_folder() as folder, running_up(folder / "state", **ONCE) as up:
        up.says("^Sign in now: ")
        up.interrupt()
        assert up.ends() == 0
        yield up


@pytest.fixture
def made(stopped: Up, folder: Path) -> Path:
    """A STATE_DIR of one's own with a database in it: half of a first start is to make that."""
    subprocess.run(["cp", "-a", str(stopped.state), str(folder / "state")], check=True)  # its owners too
    return folder / "state"


def status(address: str, timeout: float = 20) -> int:
    try:
        with urllib.request.urlopen(address, timeout=timeout) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def ends_with_one_line(up: Up, line: str) -> None:
    """It must end with exit code 1 and `line` (a regular expression) as the last one, and leave nothing running."""
    assert up.ends() == 1
    assert re.fullmatch(f"error: {line}", up.output.splitlines()[-1]), up.output
    nothing_left(up.state)


def refused(folder: Path, line: str, **environ: str) -> None:
    """`up` must refuse before it starts anything: the one line is all it says."""
    with running_up(folder / "state", **environ) as up:
        ends_with_one_line(up, line)
        assert up.output.count("\n") == 1


def test_the_address_the_data_and_how_to_stop_are_printed(up: Up) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", up.address)
    assert str(up.state) in up.says("Data: ")
    assert "Ctrl-C" in up.says("Data: ")
    assert status(up.address) in (200, 302, 404)


def test_a_llama_server_on_path_is_mentioned(up: Up) -> None:
    program = up.state.parent / "llama-server"
    assert f"LLAMA_SERVER_BIN={program} LLAMA_MODEL=" in up.says("is on your PATH")


def test_every_line_of_the_log_has_the_time_and_a_name_and_is_kept_in_the_file(up: Up) -> None:
    up.says("^Sign in now: ")
    lines = [line for line in up.output.splitlines() if not line.startswith("Sign in now: ")]
    assert all(re.match(r"\d\d:\d\d:\d\d [\w-]+ +\| ", line) for line in lines), lines
    names = {line.split()[1] for line in lines}
    assert {"up", "postgres", "migrate", "web"} <= names
    kept = (up.state / "log" / "up.log").read_text()
    assert "Ready: http" in kept
    assert (up.state / "log" / "up.log").stat().st_mode & 0o077 == 0


def test_secrets_are_their_owners_alone_and_in_no_log(up: Up) -> None:
    for name in ("secret_key", "llama/api_key"):
        path = up.state / name
        assert path.stat().st_mode & 0o077 == 0
        assert path.read_text().strip() not in up.output


def test_the_first_start_prints_a_link_that_signs_the_admin_in_once_and_no_log_has_it(up: Up) -> None:
    link = up.says(r"^Sign in now: \S+ \(once, within 10 minutes\)$").split()[3]
    assert re.fullmatch(rf"{up.address}enter/[\w-]{{43}}/", link)
    browser = requests.Session()
    assert "Sign in as admin" in browser.get(link, timeout=20).text
    sent = {"csrfmiddlewaretoken": browser.cookies["csrftoken"]}
    assert browser.post(link, sent, timeout=20).status_code == 200
    assert browser.get(f"{up.address}admin/", timeout=20).url == f"{up.address}admin/"
    assert requests.get(link, timeout=20).status_code == 410
    up.says("GET /enter/… 410")
    kept = (up.state / "log" / "up.log").read_text()
    assert "Sign in now" not in kept
    assert link.split("/")[-2] not in kept


def test_the_built_in_llama_server_has_its_slots_apart(up: Up) -> None:
    up.says("llama-server is ready")
    port, key = (up.state / "llama" / name for name in ("port", "api_key"))
    request = urllib.request.Request(
        f"http://127.0.0.1:{port.read_text().strip()}/props",
        headers={"Authorization": f"Bearer {key.read_text().strip()}"},
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        props = json.load(response)
    assert props["total_slots"] == 4
    assert props["default_generation_settings"]["n_ctx"] == 2048
    up.says(r"worker +\| .*grade=full in [\d.]+ s")


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("valkey", "valkey-server"),
        ("llama-server", "embedded.llama_server"),
        ("postgres", "bin/postgres"),
        ("web", "chatbackend.web"),
        ("worker", "run_worker"),
    ],
)
def test_a_killed_part_is_started_again_and_that_is_said(up: Up, name: str, command: str) -> None:
    ended = rf"up +\| {name} ended \(killed by SIGKILL\); starting it again in [\d.]+ s"
    before = len(re.findall(ended, up.output))
    pid = up.pid_of(command)
    os.kill(pid, signal.SIGKILL)
    up.says(ended, times=before + 1)
    assert eventually(lambda: up.pid_of(command), 30) != pid


def test_a_connection_waits_while_the_web_server_is_started_again(up: Up) -> None:
    os.kill(eventually(lambda: up.pid_of("chatbackend.web")), signal.SIGKILL)
    assert status(up.address, timeout=60) in (200, 302, 404)


def test_a_second_up_on_the_same_data_names_the_first(up: Up) -> None:
    with Up(up.state.parent / "other", STATE_DIR=str(up.state)).process as second:
        assert second.wait(30) == 1
    said = (up.state.parent / "other.out").read_text()
    assert re.fullmatch(rf"error: another `up` \(process {up.process.pid}\) runs on {up.state}: .*\n", said)


def test_ctrl_c_stops_everything_in_order_and_the_data_is_found_again(stopped: Up) -> None:
    state, said = stopped.state, stopped.output
    shown = re.findall(r"^First administrator: admin, password: (\S+) \(shown this once\)", said, re.MULTILINE)
    assert len(shown) == 1
    assert said.index("Ready: ") < said.index("First administrator: ") < said.index("Sign in now: ")
    assert shown[0] not in (state / "log" / "up.log").read_text()
    assert processes_of(state) == []
    assert "database system is shut down" in said.splitlines()[-1]
    with running_up(state, **ONCE) as again:
        assert again.address
        again.says("No migrations to apply")
        again.says("Data: ")
        again.interrupt()
        assert again.ends() == 0
        assert "First administrator" not in again.output
        assert "Sign in now" not in again.output


def test_the_password_is_shown_though_the_start_fails_after_the_account_was_made(folder: Path) -> None:
    """It is nowhere else, and the next start does not make another."""
    state = folder / "state"
    state.mkdir(mode=0o711)
    (state / "llama").write_text("no folder")
    with running_up(state, ADMIN_PASSWORD="") as up:
        assert up.ends() == 1
        assert re.search(r"^First administrator: admin, password: \S+", up.output, re.MULTILINE)
        assert "Sign in now" not in up.output
        assert f"error: File exists: {state}/llama" in up.output.splitlines()[-1]


def test_nothing_survives_a_kill_and_the_next_up_takes_over(made: Path) -> None:
    with running_up(made) as up:
        assert up.address
        up.process.kill()
        nothing_left(made)
    with running_up(made) as again:
        assert again.address


def test_a_second_ctrl_c_does_not_wait(folder: Path, made: Path) -> None:
    program = folder / "stubborn"
    program.write_text("#!/bin/sh\ntrap '' TERM\necho started\nwhile :; do sleep 1; done\n")
    program.chmod(0o755)
    with running_up(made, LLAMA_SERVER_BIN=str(program)) as up:
        up.says("llama-server +. started")
        assert up.address
        up.interrupt()
        up.says("stopping")
        up.interrupt()
        up.says("llama-server did not stop by itself: killed", timeout=8)
        assert up.ends(20) == 0


def test_ctrl_c_during_the_start_leaves_nothing(folder: Path) -> None:
    with running_up(folder / "state") as up:
        up.says("running bootstrap script|syncing data")
        up.interrupt()
        assert up.ends() == 0
        assert processes_of(folder / "state") == []
    with running_up(folder / "state", LLAMA_SERVERS="http://127.0.0.1:9") as again:
        assert again.address


def test_a_taken_port_is_refused_before_anything_starts(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        refused(
            folder,
            rf"port {port} on 127\.0\.0\.1 is taken: choose another, as in .PORT={port + 1} make up.",
            PORT=str(port),
        )


def test_an_unreadable_model_is_refused(folder: Path) -> None:
    refused(folder, r"the model /no/such\.gguf \(LLAMA_MODEL\) cannot be read: .*", LLAMA_MODEL="/no/such.gguf")


def test_a_flag_that_would_undo_the_isolation_is_refused_by_name(folder: Path) -> None:
    refused(folder, "LLAMA_ARGS must not contain -np: .*", LLAMA_ARGS="-ngl 99 -np 8")


def test_nonsense_in_the_environment_is_refused_by_name(folder: Path) -> None:
    refused(folder, "LLAMA_SLOTS must be a whole number from 1 to 256, not 'many'.", LLAMA_SLOTS="many")
    refused(folder, "TITLES must be one of on, off, not 'maybe'.", TITLES="maybe")
    refused(folder, "TIME_ZONE must be a time zone like Europe/Berlin, not 'Mars'.", TIME_ZONE="Mars")
    refused(folder, "HOST=no.such.host.invalid is no address of this machine: .*", HOST="no.such.host.invalid")
    refused(folder, "DATABASE_URL must be like postgres://.*", DATABASE_URL="mysql://root:secret@db/x")


def test_an_unreachable_database_is_named_without_its_password(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with running_up(folder / "state", DATABASE_URL=f"postgres://me:hunter2@127.0.0.1:{port}/talk") as up:
        ends_with_one_line(
            up, rf"the database talk at 127\.0\.0\.1:{port} \(DATABASE_URL\) cannot be reached: .*refused.*"
        )
        assert "hunter2" not in up.output


def test_given_services_replace_the_embedded_ones(up: Up, folder: Path) -> None:
    """The second product uses the first one's Postgres, Valkey and llama-server, and starts none itself."""
    sockets = up.state / "run"
    port, key = ((up.state / "llama" / name).read_text().strip() for name in ("port", "api_key"))
    given = {
        "DATABASE_URL": f"postgres://chat@:5432/chat?host={sockets}",
        "REDIS_URL": f"unix://{sockets}/valkey.sock",
        "LLAMA_SERVERS": f"http://:{key}@127.0.0.1:{port}",
    }
    with running_up(folder / "state", **given) as second:
        assert second.address != up.address
        names = {line.split()[1] for line in second.output.splitlines()}
        assert names.isdisjoint({"postgres", "initdb", "valkey", "llama-server"})
        assert key not in second.output


def test_a_persons_own_llama_server_runs_under_our_flags_and_its_script_is_ended_too(folder: Path, made: Path) -> None:
    program = folder / "my llama-server"
    # Not `exec`: the script stays between us and the server, as people's scripts do.
    program.write_text(f'#!/bin/sh\necho "given: $*"\n"{sys.executable}" -m chatbackend.embedded.llama_server "$@"\n')
    program.chmod(0o755)
    with running_up(made, LLAMA_SERVER_BIN=str(program), LLAMA_ARGS="-fa on --seed 7", LLAMA_SLOTS="2") as up:
        given = up.says("given: ")
        assert "-fa on --seed 7" in given
        assert "-np 2 -c 4096 --no-kv-unified --cache-ram 0" in given
        up.says("llama-server is ready")
        up.process.kill()
        nothing_left(made)


def test_a_llama_server_that_dies_never_ends_up(up_for_all: Up) -> None:
    up_for_all.says(r"llama-server ended \(exit code 3\); starting it again in 1 s")
    assert status(up_for_all.address) in (200, 302, 404)


def test_the_lan_address_is_printed_when_bound_to_all(up_for_all: Up) -> None:
    here = up_for_all.address
    assert here.startswith("http://127.0.0.1:")
    lan = up_for_all.says("On your network: http").split()[-1]
    assert status(f"{lan}healthz") == status(f"{here}healthz")
    assert status(up_for_all.says(f"^or from your network: {lan}enter/").split()[-1]) == 200


def test_it_goes_on_when_nobody_reads_its_output(folder: Path) -> None:
    state = folder / "state"
    environ = Up.environment(state, LLAMA_SERVERS="http://127.0.0.1:9", ADMIN_PASSWORD="")
    command = [sys.executable, "manage.py", "up"]
    with subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        log = state / "log" / "up.log"
        eventually(lambda: "the sign-in link could not be shown" in log.read_text(), 60, what="the site to be up")
        assert "Ready: http" in log.read_text()
        assert "the password of admin could not be shown" in log.read_text()
        process.send_signal(signal.SIGINT)
    nothing_left(state)


def test_it_stops_when_the_make_that_started_it_is_killed(made: Path) -> None:
    environ = Up.environment(made, LLAMA_SERVERS="http://127.0.0.1:9")
    command = f"'{sys.executable}' manage.py up --stop-with-parent; true"
    with subprocess.Popen(
        ["/bin/sh", "-c", command], cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True
    ) as shell:
        assert shell.stdout is not None
        assert any("Ready: http" in line for line in iter(shell.stdout.readline, ""))
        shell.kill()
        nothing_left(made)
    assert not alive(shell.pid)
