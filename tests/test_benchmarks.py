"""The benchmark measures what it says, on a site of a few milliseconds; what it finds on a real one is no test."""

import json
from pathlib import Path

import pytest

from slots.models import PastLease, Server
from tests.benchmarks import first_token, leasing, refusal, returning, throughput
from tests.benchmarks.figures import Row, added, at_most, quantile, table, write
from tests.benchmarks.ours import Person
from tests.benchmarks.straight import Straight
from tests.fake_llama import FakeLlama
from tests.llama import fake_llama_process
from tests.stack import StartProcess
from tests.web import StartWeb


@pytest.mark.django_db(transaction=True)
def test_all_of_it_runs_on_the_scripted_server(start_web: StartWeb, start_worker: StartProcess, tmp_path: Path) -> None:
    with FakeLlama(slots=2) as fake:
        start_worker(LLAMA_SERVERS=fake.url)
        person = Person(start_web(QUEUE_LENGTH="3").address)
        straight = [Straight(fake.url, "", number) for number in range(2)]
        rows = first_token.measure(person, straight[1], pairs=2)
        rows += throughput.measure(person, straight, rounds=1, tokens=10)
        # Who opens a conversation has one token read ahead.
        asked = [(record.slot, record.predicted_n) for record in fake.requests if record.predicted_n != 1]
        assert asked[:6] == [(0, first_token.TOKENS), (1, first_token.TOKENS)] * 3
        assert sorted(asked[6:]) == [(0, 10), (0, 10), (1, 10), (1, 10)]
        rows += first_token.measure(person, straight[1], pairs=1, typing=0.01)
        rows += refusal.measure(person, fill=3, tries=2, at_once=2)
    rows += leasing.measure(threads=3, sizes=(2, 4), seconds=0.05, rounds=1)
    assert PastLease.objects.filter(slot__server__model="benchmark", phase="busy").count() > 3
    assert Server.objects.filter(model="benchmark", state="retired").count() == 2
    write(tmp_path / "build" / "bench.json", rows, [0.5, 0.7], 12.3)
    found = json.loads((tmp_path / "build" / "bench.json").read_text())
    assert [row["what"] for row in found["rows"]] == [row.what for row in rows]
    assert all(row.what in table(rows) for row in rows)


@pytest.mark.django_db(transaction=True)
def test_coming_back_is_measured_on_both_sides(start_web: StartWeb, start_worker: StartProcess, tmp_path: Path) -> None:
    ours, beside = tmp_path / "ours", tmp_path / "beside"
    ours.mkdir()
    beside.mkdir()
    with fake_llama_process(slots=2, slot_save_path=ours) as fake, FakeLlama(slots=2, slot_save_path=beside) as second:
        start_worker(LLAMA_SERVERS=fake.url, TITLES="off")
        person = Person(start_web().address)
        straight = [Straight(second.url, "", number) for number in range(2)]
        rows = returning.measure(person, straight, fake.restart, returning.Size(conversations=4, rounds=1, words=60))
        rows += returning.measure_preset(person, 60)
        asked = fake.journal()["requests"]
    found = [request["cache_n"] for request in asked]  # since the restart
    assert len([tokens for tokens in found if tokens and tokens > 100]) >= 4, "everybody came back to a file"
    assert len(found) >= 4 + 4, "and there were first turns under the preset"
    assert [record.slot for record in second.requests] == [0, 1, 0, 1] + [0, 0, 1, 1] * 4 + [0, 1, 0]
    assert {row.what for row in rows} >= {"prewarmed, beside: warm", "returns after a restart, beside: warm"}


def test_figures_are_compared_as_the_goals_are_said() -> None:
    assert [quantile([4, 1, 3, 2], share) for share in (0.01, 0.5, 0.51, 0.99, 1)] == [1, 2, 3, 4, 4]
    assert at_most("x", 0.003, 0.001, 3).met
    assert not at_most("x", 0.0031, 0.001, 3).met
    assert added("x", 0.02, 0.01, 0.0101, 0.01) == Row("x", "20.0 ms", "10.0 ms", "+10.1 ms", "≤ +10 ms", False)
