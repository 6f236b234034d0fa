"""Whoever comes back to a slot that was somebody else's meanwhile finds the cache again, and nobody else does."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from conversations.history import GenerationView
from conversations.models import Conversation
from slots import parked, parking
from slots.models import Park, Server, Slot
from tests.answering import Answering, answering, somebody
from tests.fake_llama import FakeLlama

pytestmark = pytest.mark.django_db(transaction=True)

STORY = "Once upon a time there was a lighthouse whose keeper wrote down every ship that passed. " * 4


class Dead(BaseException):
    """The worker's process is gone."""


@pytest.fixture
def one_slot(tmp_path: Path) -> Iterator[Answering]:
    with FakeLlama(slots=1, slot_save_path=tmp_path) as fake, answering(fake) as worker:
        yield worker


def files(worker: Answering) -> dict[str, str]:
    """What each file of the pool holds, by name."""
    folder = worker.fake.options.slot_save_path
    assert folder
    return {path.name: "".join(json.loads(path.read_text())) for path in folder.iterdir() if "probe" not in path.name}


def figures(view: GenerationView) -> tuple[Any, Any, Any]:
    assert view.timings
    return view.timings["cache_n"], view.timings["prompt_n"], view.timings["replay_cause"]


def held(where: Conversation) -> int:
    """Tokens that its cache had when its last turn ended."""
    return int(Slot.objects.values_list("kv_tokens", flat=True).get(holder=where.pk) or 0)


def test_many_return_in_turn_to_few_slots_by_restore_and_the_disk_stays_bounded(
    tmp_path: Path, settings: Settings
) -> None:
    settings.LLAMA_PARKED = 5
    with FakeLlama(slots=2, slot_save_path=tmp_path) as fake, answering(fake) as worker:
        people = [somebody() for _ in range(6)]
        left = {}
        for where in people:
            worker.ask(where, f"I am {where.owner.username}. {STORY}")
            left[where.pk] = held(where)
        for _ in range(2):
            for where in people:
                view = worker.ask(where, "What was my first message?")
                cache, read, cause = figures(view)
                assert (cache, cause, read < 20) == (left[where.pk], None, True)
                assert view.text.startswith(f"Your first message was: I am {where.owner.username}. Once")
                left[where.pk] = held(where)
        assert set(fake.most_at_once.values()) == {1}
        assert len(files(worker)) == 5
        for where in (somebody() for _ in range(6)):
            worker.ask(where, STORY)
        assert len(files(worker)) == 5 == Park.objects.filter(state="ready").count()
        server = Server.objects.get()
        assert server.save_ms
        assert server.restore_ms
        assert parked.most_bytes(server) == pytest.approx(5 * 2048 * 23_060, rel=0.01)


def test_whose_own_slot_is_warm_nothing_of_parking_is_asked_for(
    one_slot: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = somebody()
    one_slot.ask(where, STORY)
    for module, names in ((parked, ("begin", "find")), (parking, ("park", "restore", "learn"))):
        for name in names:
            monkeypatch.setattr(module, name, lambda *_: pytest.fail("it was asked for"))
    assert figures(one_slot.ask(where, "And then?"))[2] is None
    assert not [call for call in one_slot.fake.journal.calls if "filename" in call][3:]
