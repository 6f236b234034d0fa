"""How many slots of which context, and their memory: figures that can be checked, assumptions that are said."""

import re
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection
from django.utils import timezone

from chatbackend.embedded.llama_server import bundled_model
from slots import demand, sizing
from slots.client import LlamaServer, Props, ServerError
from slots.demand import Demand
from slots.models import PastLease, Slot
from slots.sizing import Choice, Nonsense
from tests import factories, llama_client
from tests.fake_llama import FakeLlama
from tests.test_gguf import SMALL, header

MODEL = str(bundled_model())
pytestmark = pytest.mark.django_db


def told(*arguments: str, capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    """What it says, in one line."""
    with pytest.raises(SystemExit) as ended:
        call_command("check_servers", *arguments)
    assert ended.value.code == code
    return " ".join(capsys.readouterr().out.split())


def cells(said: str, name: str) -> list[str]:
    """One choice's row of the table."""
    row = re.search(rf"{name} +(\d.*?) (?=as needed|more slots|fewer slots|half the|-?$)", said)
    assert row, said
    return row[1].split()


def answered(began: float, seconds: float, fence: int) -> PastLease:
    """A turn that began so many days ago."""
    at = timezone.now() - timedelta(days=began)
    return PastLease(
        fence=fence, slot=Slot.objects.get(), holder=factories.WORKER, phase="busy", work="turn",
        worker=factories.WORKER, began_at=at, ended_at=at + timedelta(seconds=seconds), ended_by="turn_done",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("said", "size"),
    [("16G", 16 * 2**30), ("16GiB", 16 * 2**30), (" 512m ", 2**29), ("1.5T", 3 * 2**39), ("9KB", 9216)],
)
def test_sizes_are_read_as_people_write_them(said: str, size: int) -> None:
    assert sizing.size(said) == size


@pytest.mark.parametrize(
    "said", ["16", "G", "-1G", "0G", "0.0001K", "1e3G", "16 Gigs", "16Q", "", "²G", "9" * 30 + "G"]
)
def test_what_is_no_size_is_refused_with_a_sentence(said: str) -> None:
    with pytest.raises(Nonsense, match="say 16G, 16GiB or 512M"):
        sizing.size(said)


def test_three_choices_as_llama_server_rounds_them() -> None:
    assert sizing.choices(4, 8192) == [
        Choice("fewer slots", 2, 8192), Choice("as needed", 4, 8192), Choice("more slots", 6, 8192),
    ]  # fmt: skip
    assert sizing.choices(1, 1000) == [
        Choice("half the context", 1, 512), Choice("as needed", 1, 1024), Choice("more slots", 2, 1024),
    ]  # fmt: skip
    assert [one.slots for one in sizing.choices(5, 300)] == [3, 5, 8]


def test_the_wait_is_that_of_people_who_take_turns() -> None:
    # Two people, one place, each answered half the time if alone: two fifths of the time one of them waits.
    assert Demand(2, 1, 0.5, 10, "", "").wait(1) == pytest.approx(5)
    assert Demand(5, 1, 0.2, 10, "", "").wait(5) == 0
    waits = [Demand(20, 4, 0.2, 20, "", "").wait(places) for places in (1, 2, 4, 6, 8)]
    assert waits == sorted(waits, reverse=True)
    # With places for a tenth of what is asked for, everybody waits for everybody: 2000 answers of 2 s, 20 at once.
    assert Demand(2000, 20, 0.2, 2, "", "").wait(20) == pytest.approx(2000 * 2 / 20 - 2 - 8)


def test_without_a_week_of_history_the_assumptions_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    said = told("--model", MODEL, "--people", "18", "--context", "8192", capsys=capsys)
    assert "4 slots, because 1 in 5 of 18 people is taken to be answered at a busy moment, an assumption" in said
    assert "here are 0 answers of 0 days, too few to learn from" in said
    assert "an assumed 400 model tokens at an assumed (--speed says better) 20 per second" in said
    assert "at the given 80 per second" in told(
        "--model", MODEL, "--people", "18", "--context", "8192", "--speed", "80", capsys=capsys
    )


def test_a_week_of_our_own_history_decides_instead() -> None:
    factories.server(slots=1)
    # Alone but for every tenth turn, which finds two others; half a minute each.
    began = [day + turn * 0.02 for day in range(8) for turn in range(20)]
    turns = [answered(at, 30, fence) for fence, at in enumerate(began, start=1000)]
    PastLease.objects.bulk_create(turns)
    found = demand.expected(20, None)
    assert (found.places, round(found.seconds)) == (1, 30)
    assert "160 answers of the last 28 days" in found.places_why
    assert "All 1 places there are were taken then" in found.places_why
    together = [answered(at - 10 / 86400, 30, fence) for fence, at in enumerate(began * 2, start=2000)]
    PastLease.objects.bulk_create(together)
    found = demand.expected(20, None)
    assert found.places == 3
    assert found.share == pytest.approx(2 * 3 * 30 / 3600 / 20, rel=0.5)
    assert demand.expected(20, 40.0).seconds == 10
    PastLease.objects.filter(began_at__lt=timezone.now() - timedelta(days=5)).delete()
    assert "too few to learn from" in demand.expected(20, None).places_why


def test_a_database_that_does_not_answer_is_no_history(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise DatabaseError("away")

    monkeypatch.setattr(connection, "cursor", broken)
    assert "no database of this site answers" in demand.expected(20, None).places_why


def test_memory_is_told_for_each_choice_and_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    said = told("--model", MODEL, "--people", "20", "--context", "8192", "--memory", "600M", capsys=capsys)
    assert "23,040 bytes of KV cache in f16, 12,240 in q8_0" in said
    assert "A parked conversation of 8,192 takes 180 MiB on disk" in said
    assert cells(said, "fewer slots")[:9] == ["2", "8,192", "16,384", "360", "MiB", "191", "MiB", "454", "MiB"]
    assert cells(said, "fewer slots")[-1] == "yes"
    assert cells(said, "as needed")[-2:] == ["with", "q8_0"]
    assert re.search(r"more slots 6 8,192 49,152 [^:]* no fewer slots:", said)
    assert f"llama-server -m {MODEL} -np 2 --no-kv-unified -c 16384 --cache-ram 0 -sps 0" in said
    assert re.search(r"-np 4 --no-kv-unified -c 32768 [^:]* -fa on -ctk q8_0 -ctv q8_0", said)
    assert "more slots: does not fit 600 MiB, with q8_0 neither: 68 MiB too much; 6 slots of 7,168 would." in said
    assert "-np 6" not in said
    little = told("--model", MODEL, "--people", "20", "--context", "8192", "--memory", "90M", capsys=capsys)
    assert "the model leaves no room for so many slots" in little


def test_what_a_model_cannot_do_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sliding.gguf"
    path.write_bytes(header(SMALL | {"llama.attention.sliding_window": 1024, "llama.ssm.state_size": 16}))
    said = told("--model", str(path), "--people", "5", "--context", "9000", capsys=capsys)
    assert "trained for 8,192 model tokens: llama-server gives a slot no more" in said
    assert "look back 1,024 model tokens only" in said
    assert "a state of fixed size for each slot, which is not in the figures" in said
    assert re.search(r"-np 1 --no-kv-unified -c 9216 [^:]*--swa-full", said)


def test_a_slot_that_an_idle_server_saves_tells_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeLlama(slot_save_path=tmp_path) as fake:
        said = told(fake.url, "--people", "20", "--context", "8192", capsys=capsys)
    assert "23,040 bytes of KV cache in f16, 12,240 in q8_0, says a slot" in said
    assert "The model itself is not counted" in said
    assert "llama-server -m /models/scripted.gguf -np 4" in said
    assert len(list(tmp_path.iterdir())) == 1


def test_nobodys_words_are_saved_for_it(tmp_path: Path) -> None:
    with FakeLlama(slots=1, slot_save_path=tmp_path) as fake:
        llama_client.Server(fake.url).chat(llama_client.words(100), id_slot=0)
        with pytest.raises(ServerError, match="used by somebody else"):
            sizing.from_slots(LlamaServer(fake.url), [0], "file")
    assert not list(tmp_path.iterdir())


def test_the_model_that_is_served_on_this_machine_is_read_from_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LLAMA_MODEL", raising=False)
    wish = ("--people", "20", "--context", "2048")
    with pytest.raises(CommandError, match="Which model"):
        call_command("check_servers", *wish)
    with FakeLlama(model_path=MODEL) as fake:
        assert "23,040 bytes" in told(fake.url, *wish, capsys=capsys, code=1)
        factories.server(url=fake.url)
        assert "23,040 bytes" in told(*wish, capsys=capsys)
    with FakeLlama() as fake, pytest.raises(CommandError, match="Which model"):
        call_command("check_servers", fake.url, *wish)
    monkeypatch.setenv("LLAMA_MODEL", str(tmp_path / "absent.gguf"))
    with pytest.raises(CommandError, match="cannot be read"):
        call_command("check_servers", *wish)
    assert sizing.local_model("http://gpu-box:8080", Props("", "", 1, 256, MODEL)) is None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--people", "20"], "Sizing needs both"),
        (["--memory", "16G"], "Sizing needs both"),
        (["--people", "0", "--context", "8192"], "--people 0: say a whole number from 1"),
        (["--people", "many", "--context", "8192"], "--people many"),
        (["--people", "20", "--context", "99999999"], "--context 99999999"),
        (["--people", "20", "--context", "8192", "--speed", "-3"], "--speed -3"),
        (["--people", "20", "--context", "8192", "--memory", "much"], "'much' is no size"),
    ],
)
def test_nonsense_is_refused_with_a_sentence(arguments: list[str], sentence: str) -> None:
    with pytest.raises(CommandError, match=re.escape(sentence)) as refused:
        call_command("check_servers", *arguments)
    assert refused.value.returncode == 4
