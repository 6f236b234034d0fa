"""Conversations that begin with a preset find its prompt read, and in its file is nothing else."""

import json
import struct
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from django.utils import timezone
from pytest_django import Settings

from conversations import prefixes, turns
from conversations.models import Conversation, Preset
from conversations.worker.gaps import Gaps
from slots import parked, servers
from slots.models import Park, Slot
from slots.renewal import Renewal
from slots.watch import Watch
from tests import factories
from tests.answering import Answering, answering, somebody
from tests.eventually import eventually
from tests.fake_llama import FakeLlama
from tests.grading import tried
from tests.llama import LlamaProcess
from tests.scripted import tokens

pytestmark = pytest.mark.django_db(transaction=True)

HOUSE = "You are the voice of a lighthouse. Speak of ships, of fog and of patience, and never of the land. " * 3


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Answering]:
    with FakeLlama(slots=2, slot_save_path=tmp_path) as fake, answering(fake) as answers:
        yield answers


@pytest.fixture
def gaps(worker: Answering) -> Iterator[Gaps]:
    watch = Watch()
    watch.round()
    found = Gaps(factories.WORKER, watch, Renewal())
    yield found
    for thread in found.abandon():
        thread.join(10)


def preset(prompt: str = HOUSE, *, for_everybody: bool = True, owner: str = "alice") -> Preset:
    return Preset.objects.create(
        owner=factories.person(owner), name=uuid.uuid4().hex, system_prompt=prompt, for_everybody=for_everybody
    )


def read(gaps: Gaps) -> list[Park]:
    """The files of presets, once nothing more is to be read."""
    gaps.read_presets()
    eventually(lambda: not Slot.objects.filter(phase="busy").exists(), what="the prompt to be read")
    return [park for park in Park.objects.filter(state="ready") if park.holder and prefixes.is_one(park.holder)]


def read_while_busy(gaps: Gaps) -> bool:
    gaps.read_presets()
    return Slot.objects.filter(work=Slot.Work.PREWARM).exists()


def begun(worker: Answering, prompt: str, owner: str = "") -> tuple[int, int]:
    """Tokens found again and read of the first turn of a conversation with this prompt."""
    where = somebody(owner)
    Conversation.objects.filter(pk=where.pk).update(system_prompt=prompt)
    view = worker.ask(where, "Who are you?")
    assert view.timings
    assert view.timings["replay_cause"] is None
    return view.timings["cache_n"], view.timings["prompt_n"]


def content(worker: Answering, file: Park) -> str:
    folder = worker.fake.options.slot_save_path
    assert folder
    return "".join(json.loads((folder / file.name).read_text()))


def test_the_first_turn_under_a_preset_reads_its_question_alone_and_the_file_holds_the_prompt_alone(
    worker: Answering, gaps: Gaps
) -> None:
    preset()
    before = begun(worker, HOUSE)
    (file,) = read(gaps)
    alone = f"<|im_start|>system\n{HOUSE}<|im_end|>\n<|im_start|>user\n"
    assert content(worker, file) == alone
    cache, prompt = begun(worker, HOUSE)
    assert cache == file.tokens == len(tokens.split(alone))
    assert before == (0, cache + prompt)
    assert prompt < 20
    assert begun(worker, HOUSE + "Whisper.")[0] == 0
    assert content(worker, file) == alone


def test_of_a_persons_own_preset_nobody_else_finds_out_that_it_is_there(worker: Answering, gaps: Gaps) -> None:
    preset(for_everybody=False, owner="alice")
    assert read(gaps)
    assert begun(worker, HOUSE, "bob")[0] == 0
    assert begun(worker, HOUSE, "alice")[0] > 50


def test_of_a_preset_that_was_changed_or_removed_nothing_is_kept(worker: Answering, gaps: Gaps) -> None:
    mine = preset()
    (file,) = read(gaps)
    Preset.objects.filter(pk=mine.pk).update(system_prompt=HOUSE + "Whisper.")
    gaps.read_presets()
    file.refresh_from_db()
    assert (file.state, file.holder) == ("stale", None)
    (other,) = read(gaps)
    assert "Whisper." in content(worker, other)
    Preset.objects.all().delete()
    gaps.read_presets()
    assert parked.due() == 1 + (file.pk != other.pk)


def test_of_one_that_was_removed_nothing_is_kept_however_busy_its_server_is(worker: Answering, gaps: Gaps) -> None:
    mine = preset(for_everybody=False)
    (file,) = read(gaps)
    factories.sent(somebody(), "hello")
    mine.delete()
    gaps.read_presets()
    file.refresh_from_db()
    assert (file.state, file.holder) == ("stale", None)


def test_a_date_is_that_of_today_and_what_differs_each_time_is_not_read_at_all(settings: Settings) -> None:
    preset(HOUSE + "It is {date}.")
    preset(HOUSE + "It is {time}.")
    preset("Be brief.")
    (one,) = prefixes.wanted(())
    today = datetime.now(UTC).astimezone(timezone.get_default_timezone())
    assert one.system_prompt.endswith(f"{today:%B %Y}.")


def test_of_many_presets_those_for_everybody_are_read_and_a_bounded_number_in_all() -> None:
    for number in range(prefixes.MOST):
        preset(f"{number} {HOUSE}", for_everybody=number == 0)
    preset(f"newest {HOUSE}", for_everybody=False)
    found = [one.system_prompt.split()[0] for one in prefixes.wanted(())]
    assert len(found) == prefixes.MOST
    assert found[:2] == ["0", "newest"]


def test_nothing_is_read_while_anybody_is_answered_or_waits_and_not_twice_in_a_while(
    worker: Answering, gaps: Gaps
) -> None:
    preset()
    factories.sent(somebody(), "hello")
    assert not read(gaps)
    claimed = turns.claim(factories.WORKER, [worker.server.pk])
    assert claimed
    assert not read_while_busy(gaps)
    worker.run(claimed)
    (file,) = read(gaps)
    parked.forget([file.holder] if file.holder else [])
    assert not read(gaps)


@pytest.mark.llama
def test_on_the_real_server_the_file_holds_the_tokens_of_the_prompt_and_no_others(real_llama: LlamaProcess) -> None:
    server = tried(real_llama.url, api_key=real_llama.api_key or "")
    preset()
    watch = Watch()
    watch.round()
    (file,) = read(Gaps(factories.WORKER, watch, Renewal()))
    told = servers.client_of(server).tokens(f"<|im_start|>system\n{HOUSE}<|im_end|>\n<|im_start|>user\n")
    assert file.tokens == len(told)
    folder = Path(real_llama.command[real_llama.command.index("--slot-save-path") + 1])
    written = (folder / file.name).read_bytes()
    at = written.index(struct.pack(f"<{len(told)}i", *(number for number, _ in told)))
    assert at < 64, "the list of tokens is what the file begins with"
    assert struct.unpack("<i", written[at - 4 : at]) == (len(told),)
