"""Whoever comes back to a slot that was somebody else's meanwhile finds the cache again, and nobody else does."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone
from pytest_django import Settings

from conversations import actions
from conversations.history import GenerationView
from conversations.models import Conversation
from slots import checking, client, grades, leases, parked, parking
from slots.client import LlamaServer
from slots.models import Park, Server, Slot
from tests import factories
from tests.administrators import administrator
from tests.answering import Answering, answering, somebody
from tests.fake_llama import FakeLlama
from tests.llama import real_llama_server

pytestmark = pytest.mark.django_db(transaction=True)

STORY = "Once upon a time there was a lighthouse whose keeper wrote down every ship that passed. " * 3


class Dead(BaseException):
    """The worker's process is gone."""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Answering]:
    """On a server of one slot: two people take it from each other with every turn."""
    with FakeLlama(slots=1, slot_save_path=tmp_path) as fake, answering(fake) as worker:
        yield worker


def files(worker: Answering) -> dict[str, list[str]]:
    """The model tokens in each file of the pool, by name."""
    folder = worker.fake.options.slot_save_path
    assert folder
    return {path.name: json.loads(path.read_text()) for path in folder.iterdir() if "probe" not in path.name}


def figures(view: GenerationView) -> tuple[Any, Any]:
    """How many tokens were found again, and why no more were."""
    assert view.timings
    return view.timings["cache_n"], view.timings["replay_cause"]


def held(where: Conversation) -> int:
    """Tokens that its cache had when its last turn ended."""
    return int(Slot.objects.values_list("kv_tokens", flat=True).get(holder=where.pk) or 0)


def introduce(worker: Answering, where: Conversation) -> int:
    """Its first turn; how many tokens it leaves in the cache."""
    worker.ask(where, f"I am {where.owner.username}. {STORY}")
    return held(where)


def return_of(worker: Answering, where: Conversation) -> GenerationView:
    """Another turn; the answer tells whose history the model has read."""
    view = worker.ask(where, "What was my first message?")
    assert view.text.startswith(f"Your first message was: I am {where.owner.username}. Once")
    return view


def saves(worker: Answering) -> int:
    return sum("action=save" in call for call in worker.fake.journal.calls)


def check(worker: Answering, *people: Conversation) -> None:
    """What rows promise of files is so: as many tokens, of their holder and of nobody else."""
    names = {where.pk: where.owner.username for where in people}
    for row in Park.objects.filter(state=Park.State.READY):
        assert row.holder
        tokens = files(worker)[row.name]
        assert len(tokens) == row.tokens
        told = "".join(tokens)
        assert {name for name in names.values() if f"I am {name}." in told} == {names[row.holder]}


def test_many_return_in_turn_to_few_slots_by_restore_and_the_disk_stays_bounded(
    tmp_path: Path, settings: Settings
) -> None:
    settings.LLAMA_PARKED = 5
    with FakeLlama(slots=2, slot_save_path=tmp_path) as fake, answering(fake) as worker:
        people = [somebody() for _ in range(6)]
        left = {where.pk: introduce(worker, where) for where in people}
        for _ in range(2):
            for where in people:
                assert figures(return_of(worker, where)) == (left[where.pk], None)
                left[where.pk] = held(where)
        check(worker, *people)
        for _ in range(3):
            introduce(worker, somebody())
        assert len(files(worker)) == Park.objects.filter(state="ready").count() == 5
        assert set(fake.most_at_once.values()) == {1}
    server = Server.objects.get()
    assert server.save_ms
    assert parked.most_bytes(server) == pytest.approx(5 * 2048 * 23_060, rel=0.01)
    said = " ".join(checking.text([checking.stored(server, timezone.now())]).split())
    assert re.search(
        r"5 of 5 files hold a cache, [\d.]+ MB, 2\d\d MB at most. Bringing one back took \d+ ms lately", said
    )


def test_on_a_warm_slot_nothing_of_parking_is_looked_for(worker: Answering, monkeypatch: pytest.MonkeyPatch) -> None:
    where = somebody()
    introduce(worker, where)
    for module, names in ((parked, ("begin", "find")), (parking, ("park", "restore", "learn"))):
        for name in names:
            monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("it was"))
    assert figures(return_of(worker, where))[1] is None


POINTS: dict[str, tuple[Any, str, bool]] = {
    "before the file is written": (LlamaServer, "saved", False),
    "after it was written": (parked, "keep", False),
    "after its row says so": (parked, "keep", True),
    "before a file is read": (LlamaServer, "act", False),
    "after it was read": (leases, "filled", False),
    "after the slot's row says so": (leases, "filled", True),
    "when the request was sent": (LlamaServer, "post", True),
}


@pytest.mark.parametrize(("where", "name", "after"), POINTS.values(), ids=POINTS.keys())
def test_a_worker_that_dies_between_two_steps_leaves_nothing_wrong(
    where: Any, name: str, after: bool, worker: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = somebody("alice"), somebody("bob")
    introduce(worker, alice)
    introduce(worker, bob)
    claim = worker.claim(alice, "What was my first message?")
    with monkeypatch.context() as patched:
        patched.setattr(where, name, _dying(getattr(where, name), after=after))
        with pytest.raises(Dead):
            worker.run(claim)
    check(worker, alice, bob)
    view = worker.take_over(claim)
    assert (view.status, view.text.split(".")[0]) == ("done", "Your first message was: I am alice")
    for returning in (bob, alice, bob):
        last = return_of(worker, returning)
        check(worker, alice, bob)
    assert figures(last)[1] is None
    assert worker.fake.most_deferred == 0
    assert Server.objects.get().parking == "effective"
    assert Park.objects.filter(state="ready").count() + parked.abandoned() <= 3


def _dying(step: Callable[..., Any], *, after: bool) -> Callable[..., Any]:
    def dies(*args: Any, **kwargs: Any) -> Any:
        if after:
            step(*args, **kwargs)
        raise Dead

    return dies


class TestAFileIsNotRead:
    """What then follows is a replay, and the next time it is well again."""

    def test_of_which_fewer_tokens_were_saved_than_there_were(self, worker: Answering) -> None:
        alice, bob = somebody("alice"), somebody("bob")
        introduce(worker, alice)
        worker.fake.set(saves_fewer=3)
        introduce(worker, bob)
        assert [row.state for row in Park.objects.exclude(state="empty")] == ["stale"]
        worker.fake.set(saves_fewer=0)
        assert figures(return_of(worker, alice)) == (0, "evicted")
        assert figures(return_of(worker, bob))[1] is None

    def test_that_is_gone_or_is_another_one(self, worker: Answering) -> None:
        alice, bob, carol = (somebody(name) for name in ("alice", "bob", "carol"))
        for where in (alice, bob, carol):
            introduce(worker, where)
        folder = worker.fake.options.slot_save_path
        assert folder
        by_holder = {row.holder: folder / row.name for row in Park.objects.filter(state="ready")}
        by_holder[alice.pk].unlink()
        by_holder[bob.pk].write_text(json.dumps(["I", " am", " carol", "."] * 40))
        for where in (alice, bob):
            assert figures(return_of(worker, where)) == (0, "evicted")
        check(worker, alice, bob, carol)
        assert figures(return_of(worker, carol))[1] is None
        assert figures(return_of(worker, alice))[1] is None

    def test_that_somebody_began_to_write_over_before_it_was_read(
        self, worker: Answering, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        alice, bob = somebody("alice"), somebody("bob")
        introduce(worker, alice)
        introduce(worker, bob)
        act = LlamaServer.act

        def meanwhile(llama: LlamaServer, id_slot: int, action: str, filename: str) -> int:
            Park.objects.filter(name=filename).update(holder=bob.pk)
            return act(llama, id_slot, action, filename)

        monkeypatch.setattr(parking, "park", lambda *_, **__: None)
        monkeypatch.setattr(LlamaServer, "act", meanwhile)
        assert figures(return_of(worker, alice)) == (0, "evicted")

    def test_that_belongs_to_another_conversation_though_it_begins_alike(self, worker: Answering) -> None:
        alice, bob, carol = (somebody(name) for name in ("alice", "bob", "carol"))
        worker.ask(alice, STORY)
        introduce(worker, bob)
        assert figures(worker.ask(carol, STORY)) == (0, None)

    def test_that_what_is_asked_does_not_go_on_from(self, worker: Answering) -> None:
        alice, bob = somebody("alice"), somebody("bob")
        introduce(worker, alice)
        introduce(worker, bob)
        Conversation.objects.filter(pk=alice.pk).update(system_prompt="Be brief.")
        assert figures(return_of(worker, alice)) == (0, "evicted")
        assert not any("action=restore" in call for call in worker.fake.journal.calls[-20:])


def test_a_save_that_hangs_is_given_up_and_after_two_of_them_parking_is(
    worker: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = somebody("alice"), somebody("bob")
    introduce(worker, alice)
    monkeypatch.setattr(client, "ACTION_SECONDS", 0.4)
    worker.fake.set(save_hangs=True)
    introduce(worker, bob)
    assert Server.objects.get().parking == "effective"
    assert [row.state for row in Park.objects.exclude(state="empty")] == ["stale"]
    return_of(worker, alice)
    assert Server.objects.get().parking == "ineffective"
    before = saves(worker)
    return_of(worker, bob)
    assert saves(worker) == before


def test_a_restore_that_hangs_counts_as_much(worker: Answering, monkeypatch: pytest.MonkeyPatch) -> None:
    alice, bob = somebody("alice"), somebody("bob")
    introduce(worker, alice)
    introduce(worker, bob)
    asked: list[str] = []

    def hangs(_: LlamaServer, __: int, action: str, ___: str) -> int:
        asked.append(action)
        raise client.StreamBroken("It took the request and then said nothing.")

    monkeypatch.setattr(LlamaServer, "act", hangs)
    assert figures(return_of(worker, alice)) == (0, "evicted")
    assert Server.objects.get().parking_proved == [False]
    assert figures(return_of(worker, bob)) == (0, "evicted")
    assert Server.objects.get().parking == "ineffective"
    assert asked == ["restore", "restore"]


def test_a_save_that_waits_for_another_s_answer_is_given_up_and_nothing_held_against_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeLlama(slots=2, slot_save_path=tmp_path) as fake, answering(fake) as worker:
        factories.leased(worker.server)
        introduce(worker, alice := somebody("alice"))
        monkeypatch.setattr(client, "ACTION_SECONDS", 0.4)
        fake.set(save_hangs=True)
        for where in (somebody("bob"), somebody("carol"), alice):
            worker.ask(where, STORY)
        assert saves(worker) > 2
        server = Server.objects.get()
        assert (server.parking, server.parking_proved) == ("effective", [])


def test_where_what_was_restored_is_not_found_again_it_is_read_again_and_parking_ends(worker: Answering) -> None:
    alice, bob = somebody("alice"), somebody("bob")
    introduce(worker, alice)
    introduce(worker, bob)
    worker.fake.set(restore_is_empty=True)
    assert figures(return_of(worker, alice)) == (0, "evicted")
    assert Server.objects.get().parking_proved == [False]
    assert figures(return_of(worker, bob)) == (0, "evicted")
    server = Server.objects.get()
    assert (server.parking, server.grade) == ("ineffective", "no_parking")
    asked = len(worker.fake.journal.calls)
    assert figures(return_of(worker, alice)) == (0, "evicted")
    assert not any("action=" in call for call in worker.fake.journal.calls[asked:])
    assert not Park.objects.filter(state="ready").exists()
    page = administrator().get(f"/admin/slots/server/{server.pk}/change/").content.decode()
    assert grades.USELESS_FILES in page


class TestAnotherProcess:
    def test_of_the_same_model_goes_on_from_the_files(self, worker: Answering) -> None:
        alice, bob = somebody("alice"), somebody("bob")
        left = introduce(worker, alice)
        introduce(worker, bob)
        worker.fake.restart()
        worker.probe()
        assert figures(return_of(worker, alice)) == (left, None)
        assert figures(return_of(worker, bob)) == (0, "server_restarted")

    @pytest.mark.parametrize("changed", [{"weights": "others"}, {"n_ctx": 1024}, {"model_path": "/models/other.gguf"}])
    def test_of_another_one_does_not(self, changed: dict[str, Any], worker: Answering) -> None:
        introduce(worker, alice := somebody("alice"))
        introduce(worker, somebody("bob"))
        for name, value in changed.items():
            setattr(worker.fake.options, name, value)
        worker.fake.restart()
        worker.probe()
        assert Park.objects.filter(state="stale").count() == parked.due() == 1
        assert figures(return_of(worker, alice)) == (0, "server_restarted")


def test_what_is_deleted_is_overwritten_before_anything_else_is_parked(worker: Answering) -> None:
    alice, bob, carol = (somebody(name) for name in ("alice", "bob", "carol"))
    introduce(worker, alice)
    introduce(worker, bob)
    actions.remove(alice.owner_id, alice.pk)
    assert parked.due() == 1
    assert [row.holder for row in Park.objects.filter(state="stale")] == [None]
    introduce(worker, carol)
    assert parked.due() == 0
    assert [name for name, tokens in files(worker).items() if "alice" in "".join(tokens)] == []
    check(worker, bob, carol)


@pytest.mark.llama
def test_on_the_real_server_six_return_to_two_slots_in_turn_and_nothing_of_theirs_is_read_again(tmp_path: Path) -> None:
    with real_llama_server(slots=2, slot_context=512, slot_save_path=tmp_path) as real, answering(real) as worker:
        params = {"max_tokens": 4, "temperature": 0}
        people = [somebody(name) for name in ("ada", "bert", "cleo", "dora", "emil", "fritz")]
        Conversation.objects.update(params=params)
        first = [worker.ask(where, f"My name is {where.owner.username}. {STORY}") for where in people]
        left: list[int] = []
        back = []
        for where in people:
            row = Park.objects.filter(holder=where.pk).first()
            left.append(row.tokens or 0 if row else held(where))
            back.append(worker.ask(where, "And then?"))
    told = [(view.timings or {}) for view in back]
    assert [one["replay_cause"] for one in told] == [None] * 6
    assert [one["cache_n"] for one in told] == left
    assert sum(one["prompt_n"] for one in told) < 0.5 * sum((view.timings or {})["prompt_n"] for view in first)
    assert sum(one["ttft_ms"] for one in told) < sum((view.timings or {})["ttft_ms"] for view in first)
