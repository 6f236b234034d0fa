"""`check_servers` tells what servers are good for, without a site, without a database, and changes nothing."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from django.core.management import call_command

from slots.models import Server, Slot
from tests import factories, llama_client
from tests.balancer import balanced
from tests.fake_llama import FakeLlama
from tests.grading import tried
from tests.llama import ROOT
from tests.strangers import stranger

DEFAULTS = {"cache_ram": True, "kv_unified": True}


def check(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Its exit code, and what it said."""
    with pytest.raises(SystemExit) as ended:
        call_command("check_servers", *arguments)
    code = ended.value.code
    assert isinstance(code, int)
    return code, capsys.readouterr().out


def without_a_database(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {
        **os.environ, "SECRET_KEY": "nothing-is-signed-here", "STATE_DIR": str(folder / "state"),
        "DATABASE_URL": "postgres://nobody@127.0.0.1:9/none", "REDIS_URL": "redis://127.0.0.1:9",
    }  # fmt: skip
    command: Sequence[str] = [sys.executable, "manage.py", "check_servers", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_an_address_is_checked_without_a_database_and_nothing_is_left_behind(tmp_path: Path) -> None:
    with FakeLlama(**DEFAULTS) as fake:
        done = without_a_database(tmp_path, fake.url)
    assert (done.returncode, done.stderr) == (2, "")
    assert "llama-server  scripted  4 × 2,048" in done.stdout
    assert "one at a time" in done.stdout
    assert "keep your other flags" in done.stdout
    assert "room for one slot of 2,048 tokens" in " ".join(done.stdout.split())
    assert "llama-server -m /models/scripted.gguf -np 1 --no-kv-unified -c 2048 --cache-ram 0" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_without_an_address_and_without_a_database_it_says_so(tmp_path: Path) -> None:
    done = without_a_database(tmp_path)
    assert done.returncode == 4
    assert "The database does not answer" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_exit_code_is_the_grade(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeLlama(slot_save_path=tmp_path) as full, FakeLlama() as no_parking, FakeLlama(**DEFAULTS) as shared:
        assert check(full.url, capsys=capsys)[0] == 0
        assert check(no_parking.url.removeprefix("http://"), capsys=capsys)[0] == 1
        assert check(shared.url, capsys=capsys)[0] == 2
        assert check("http://127.0.0.1:9", capsys=capsys)[0] == 3
        code, said = check(full.url, shared.url, no_parking.url, capsys=capsys)
    assert code == 2
    assert next(line for line in said.splitlines() if "4 × 2,048" in line).endswith("full")


def test_it_says_beforehand_what_it_sends_and_uses_slots_that_nobody_used(
    fake_llama: FakeLlama, capsys: pytest.CaptureFixture[str]
) -> None:
    llama_client.Server(fake_llama.url).chat("I was here", id_slot=0)
    held = llama_client.Server(fake_llama.url).slot(0)
    _, said = check(fake_llama.url, capsys=capsys)
    assert "to slots 1 and 2, which nobody used yet" in said.splitlines()[0]
    assert {canary.id_slot for canary in fake_llama.journal.raw} == {1, 2}
    assert llama_client.Server(fake_llama.url).slot(0) == held
    for slot in (1, 2, 3):
        llama_client.Server(fake_llama.url).chat("I was here", id_slot=slot)
    assert "whatever was kept warm is lost" in check(fake_llama.url, capsys=capsys)[1].splitlines()[0]


def test_a_server_in_use_is_only_looked_at(fake_llama: FakeLlama, capsys: pytest.CaptureFixture[str]) -> None:
    with llama_client.Server(fake_llama.url).open("A story", id_slot=2, max_tokens=900, ignore_eos=True):
        code, said = check(fake_llama.url, capsys=capsys)
    assert (code, "it is in use: Slot 2 is busy" in said) == (4, True)
    assert not fake_llama.journal.raw


def test_only_looking_sends_nothing(fake_llama: FakeLlama, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = check(fake_llama.url, "--no-probe", capsys=capsys)
    assert (code, "not known" in said) == (4, True)
    assert {call.partition("?")[0] for call in fake_llama.journal.calls} == {"GET /props", "GET /slots"}


def test_who_answers_is_named_with_the_cure(capsys: pytest.CaptureFixture[str]) -> None:
    with stranger("Ollama") as url:
        code, said = check(url, capsys=capsys)
    assert code == 3
    assert f"{url}  Ollama" in said
    assert "start llama-server itself" in said


def test_several_processes_behind_one_address_are_told(
    fake_llama: FakeLlama, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeLlama() as other, balanced(fake_llama.port, other.port) as url:
        code, said = check(url, capsys=capsys)
    assert (code, "Several processes answer behind this address." in said) == (3, True)
    assert f"{url}  llama-server" in said
    assert not fake_llama.journal.raw


def test_a_key_is_used_and_never_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeLlama(api_key="sesame") as fake:
        assert check(fake.url, capsys=capsys)[0] == 3
        code, said = check(fake.url.replace("//", "//:sesame@"), capsys=capsys)
    assert (code, "sesame" in said) == (1, False)


@pytest.mark.django_db
def test_registered_servers_are_told_as_the_workers_found_them(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeLlama(**DEFAULTS) as fake:
        server = tried(fake.url)
        factories.server(url="http://other.test:8080")
        factories.server(url="http://gone.test:8080")
        Server.objects.filter(url="http://gone.test:8080").update(state="retired")
        sent = len(fake.journal.calls)
        code, said = check(capsys=capsys)
        assert len(fake.journal.calls) == sent
    assert code == 2
    assert server.cure in said
    assert "gone.test" not in said
    assert Slot.objects.filter(condition="unused").count() == 3


@pytest.mark.django_db
def test_a_server_that_no_worker_has_tried_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    Server.objects.create(url="http://new.test:8080")
    code, said = check(capsys=capsys)
    assert (code, "No worker has tried it yet." in said) == (4, True)
