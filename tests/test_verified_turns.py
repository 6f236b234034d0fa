"""What a slot's cache holds is known, not hoped (`conversations.worker.verifying`)."""

import re
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from conversations import replays, sending, turns
from conversations.history import GenerationView
from conversations.models import Conversation, Generation, Message
from slots import leases, orders, servers
from slots.capacity import out_of_service
from slots.models import Server, Slot
from tests import factories
from tests.administrators import administrator
from tests.answering import answering, somebody
from tests.answers import ended, look, written
from tests.eventually import eventually
from tests.fake_llama import FakeLlama, Script, default_answer
from tests.llama import real_llama_server
from tests.scripted import engine, tasks
from tests.stack import StartProcess

pytestmark = pytest.mark.django_db(transaction=True)

SECRET = "My diary, which nobody else has ever read. " * 10


def figure(view: GenerationView, name: str) -> Any:
    assert view.timings
    return view.timings[name]


def quiet(server: Server | None = None) -> bool:
    rows = Slot.objects.filter(server=server) if server else Slot.objects.all()
    return not rows.filter(phase="busy").exists() and not rows.filter(condition="stopping").exists()


def answered(where: Conversation, words: str, to: Message | None = None) -> GenerationView:
    """The answer to `words`, said after `to` or at the end, once its slot is quiet."""
    parent = to.pk if to else None
    view = ended(sending.send(where.owner_id, where.pk, uuid.uuid4(), words, parent, to_leaf=to is None), 60)
    assert view.status == "done", view.error
    eventually(quiet)
    return view


def another(view: GenerationView) -> GenerationView:
    """Another answer to the same question."""
    owner = Generation.objects.get(pk=view.id).owner_id
    again = ended(sending.regenerate(owner, view.message, uuid.uuid4()), 60)
    eventually(quiet)
    return again


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[engine.Engine, tasks.Slot, tasks.Generation], None]]:
    """What is to happen to a slot of the scripted server just before it begins with a request."""
    before: list[Callable[[engine.Engine, tasks.Slot, tasks.Generation], None]] = []
    launch = engine.Engine._launch

    def disturbed(self: engine.Engine, slot: tasks.Slot, task: tasks.Generation) -> None:
        for disturb in before:
            disturb(self, slot, task)
        launch(self, slot, task)

    monkeypatch.setattr(engine.Engine, "_launch", disturbed)
    return before


def test_what_people_do_is_read_once_and_called_a_replay_only_where_it_is_one(
    fake_llama: FakeLlama, start_worker: StartProcess
) -> None:
    worker = start_worker(LLAMA_SERVERS=fake_llama.url)
    where = factories.conversation(system_prompt="Be brief.")
    first = answered(where, f"A long first message. {SECRET}")
    second = answered(where, "And then?")
    again = another(second)
    shorter = answered(where, "Or then?", Message.objects.get(pk=first.message))
    after = answered(where, "And at last?")
    for view, most in ((second, 15), (again, 1), (shorter, 15), (after, 15)):
        assert figure(view, "replay_cause") is None, view.timings
        assert figure(view, "prompt_n") <= most, view.timings
    back = answered(where, "Once more", Message.objects.get(pk=again.message))
    assert (figure(back, "replay_cause"), figure(back, "prompt_n") > 24) == ("branch", True)
    Conversation.objects.filter(pk=where.pk).update(system_prompt="Be verbose.")
    otherwise = answered(where, "Why?")
    assert figure(otherwise, "replay_cause") == "settings"
    assert re.search(rf"generation={otherwise.id} replay cause=settings tokens=\d+ ms=[\d.]+", worker.output())
    told = replays.since(timezone.now() - timedelta(hours=1))
    assert {(one.cause, one.count) for one in told} == {("branch", 1), ("settings", 1)}
    for one, view in zip(sorted(told, key=lambda one: one.cause), (back, otherwise), strict=True):
        assert one.tokens == figure(view, "prompt_n")
        assert one.milliseconds == pytest.approx(figure(view, "prompt_ms"))
    assert "Settings: 1 turn" in administrator().get("/admin/").content.decode()
    assert not replays.since(timezone.now() + timedelta(hours=1))


def test_what_the_server_or_its_template_does_to_a_cache_is_told_apart(
    launched: list[Any], start_worker: StartProcess
) -> None:
    with FakeLlama(keeps_thoughts=False) as fake_llama:
        told_apart(launched, fake_llama, start_worker)


def told_apart(launched: list[Any], fake_llama: FakeLlama, start_worker: StartProcess) -> None:
    fake_llama.set(marker=False)
    worker = start_worker(LLAMA_SERVERS=fake_llama.url)
    where = factories.conversation()
    fake_llama.script(Script(text="Four.", reasoning="Two and two are what they are. " * 8, match="2 + 2"))
    answered(where, f"{SECRET} 2 + 2?")
    assert figure(answered(where, "Sure?"), "replay_cause") == "template"

    launched.append(lambda _, slot, task: slot.tokens.clear() if "Lost?" in "".join(task.prompt) else None)
    assert figure(answered(where, "Lost?"), "replay_cause") == "cache_lost"
    launched.clear()
    assert figure(answered(where, "Warm again?"), "replay_cause") is None

    fake_llama.restart()
    restarted = answered(where, "Restarted?")
    assert (figure(restarted, "replay_cause"), figure(restarted, "cache_n")) == ("server_restarted", 0)
    assert Server.objects.get().foreign_count == 0
    eventually(lambda: Server.objects.filter(state="ready").exists())
    answered(where, "Warm?")

    slot = Slot.objects.get(holder=where.pk)

    def elsewhere(_: engine.Engine, taken: tasks.Slot, task: tasks.Generation) -> None:
        """It answers, and `/slots` shows nothing of it on the slot that was asked."""
        task.id_task = slot.kv_task or 0

    launched.append(elsewhere)
    answered(where, "Elsewhere?")
    assert "the server ran it elsewhere" in worker.output()
    assert Slot.objects.get(pk=slot.pk).kv_of is None


def test_what_yielded_to_a_turn_may_arrive_behind_its_look_at_the_slot_and_is_no_alarm(launched: list[Any]) -> None:
    """It asks whether the slot is still its own just before it sends, and no sooner can it be stopped."""
    with FakeLlama(slots=1) as fake, answering(fake) as worker:
        where = somebody()
        worker.ask(where, SECRET)
        title = leases.acquire(where.pk, factories.OTHER_WORKER, [worker.server.pk], work=Slot.Work.TITLE)
        claim = worker.claim(where, "And then?")
        assert title
        assert claim.grant.preempted == title.stream_id

        def arrived(_: engine.Engine, slot: tasks.Slot, task: tasks.Generation) -> None:
            """The conversation again, and then a few tokens that both requests have behind it."""
            slot.tokens[:] = task.prompt[:-2]

        launched.append(arrived)
        view = worker.run(claim)
        assert (view.status, figure(view, "prompt_n")) == ("done", 2)
        assert Server.objects.get().state == "ready"


def test_who_says_another_s_first_message_word_for_word_finds_nothing_of_it(start_worker: StartProcess) -> None:
    """Nor who was refused before: what a refused request leaves in the slot is still the former holder's."""
    with FakeLlama(slots=1, prefill_rate=2000) as server:
        start_worker(LLAMA_SERVERS=server.url)
        alone = answered(factories.conversation(), SECRET)
        bob = factories.conversation(factories.person("bob"))
        server.script(Script(fault="400", times=1))
        assert ended(factories.sent(bob, "Refused")).status == "failed"
        eventually(quiet)
        copied = answered(bob, SECRET)
    assert [record.body.get("cache_prompt") for record in server.requests] == [False] * 3
    assert figure(copied, "cache_n") == 0
    assert figure(copied, "prompt_n") >= figure(alone, "prompt_n")
    assert figure(copied, "prompt_ms") > 0.5 * figure(alone, "prompt_ms")


class TestIsolationIsBroken:
    """A server that reuses what it was told not to."""

    def test_nothing_of_it_is_shown_and_everybody_goes_on_elsewhere(
        self, launched: list[Any], start_worker: StartProcess
    ) -> None:
        def reuses(self: engine.Engine, _: tasks.Slot, task: tasks.Generation) -> None:
            task.cache_prompt = task.cache_prompt or self.n_ctx == 1024

        launched.append(reuses)
        with FakeLlama(slots=2, n_ctx=1024) as broken, FakeLlama() as sound:
            worker = start_worker(LLAMA_SERVERS=broken.url)
            answered(factories.conversation(), SECRET)
            carol = factories.sent(factories.conversation(), "Go on for long. [[tokens=160 rate=40]]")
            shown = written(carol).text
            bob = factories.sent(factories.conversation(factories.person("bob")), f"{SECRET} [[tokens=40]]")
            eventually(lambda: Server.objects.filter(state="unusable").exists())
            eventually(quiet, 5, what="all that ran there to be stopped")
            assert {record.outcome for record in broken.requests[1:]} == {"cancelled"}
            assert look(bob).text == ""
            assert look(carol).text.startswith(shown)
            assert not Slot.objects.exclude(phase="free", kv_of=None).exists()
            row = Server.objects.get()
            why = f"Isolation is broken: slot {broken.requests[-1].slot} reused"
            assert row.costs.startswith(why)
            assert why in (servers.why_none() or "")
            assert re.search(rf"ERROR.*OUT OF SERVICE.*{why}", worker.output())
            listed = administrator().get("/admin/slots/server/").content.decode()
            assert f'<span class="pill bad">Not usable</span> {why}' in listed
            Server.objects.create(url=sound.url)
            for turn, tokens, cause in ((bob, 40, None), (carol, 160, "moved")):
                view = ended(turn)
                assert (view.status, view.text) == ("done", default_answer(turn.message.text, tokens))
                assert figure(view, "replay_cause") == cause
                assert Generation.objects.get(pk=turn.generation.pk).attempt == 1
            assert len(broken.requests) == 3
            assert f"{broken.url} is out of service: {why}" in out_of_service()
            orders.probe_again(row)
            eventually(lambda: Server.objects.filter(pk=row.pk, state="ready").exists())

    def test_a_new_process_is_tried_by_itself(self, launched: list[Any], start_worker: StartProcess) -> None:
        launched.append(lambda _, slot, task: setattr(task, "cache_prompt", True))
        with FakeLlama(slots=1) as broken:
            start_worker(LLAMA_SERVERS=broken.url)
            answered(factories.conversation(), SECRET)
            turn = factories.sent(factories.conversation(), SECRET)
            eventually(lambda: Server.objects.filter(state="unusable").exists())
            launched.clear()
            broken.restart()
            assert ended(turn).status == "done"
            assert out_of_service() == ""


@pytest.mark.llama
def test_the_real_server_reuses_all_of_a_conversation_s_own_tokens_and_nothing_of_another_s(
    start_worker: StartProcess,
) -> None:
    """One slot of it; a bound that were one token too low, or a rule too strict, would show in the first turns."""
    with real_llama_server(slots=1, slot_context=1024) as server:
        worker = start_worker(LLAMA_SERVERS=server.url.replace("//", f"//:{server.api_key}@"))
        where = factories.conversation(params={"max_tokens": 12}, system_prompt="You are the keeper of a lighthouse.")
        secret = "In my diary I wrote that the ships I love best are those that never come back. " * 3
        first = answered(where, secret)
        held = [Slot.objects.get().kv_tokens or 0]
        own = []
        for words in ("Why?", "And the sea?", "Name three birds."):
            own.append(answered(where, words))
            held.append(Slot.objects.get().kv_tokens or 0)
        again = another(own[-1])
        Conversation.objects.filter(pk=where.pk).update(params={"max_tokens": 60})
        turn = factories.sent(where, "Tell me a long story.")
        written(turn, 1)
        turns.cancel(where.owner_id, turn.generation.pk)
        assert ended(turn).status in ("cancelled", "done")
        eventually(quiet)
        stopped = Slot.objects.get().kv_tokens or 0
        own.append(answered(where, "Go on."))
        bob = factories.conversation(factories.person("bob"), system_prompt=where.system_prompt)
        Conversation.objects.filter(pk=bob.pk).update(params={"max_tokens": 4})
        copied = answered(bob, secret)
        assert "isolation" not in worker.output().lower()
    told = [view.timings for view in (first, *own, again, copied)]
    assert [figure(view, "replay_cause") for view in (*own, again)] == [None] * 5, told
    found = [figure(view, "cache_n") for view in own]
    for cache, tokens in zip(found, [*held[:3], stopped], strict=True):
        assert 0.9 * tokens <= cache <= tokens, (told, held, stopped)
    assert figure(again, "prompt_n") <= 2
    assert (figure(copied, "cache_n"), figure(copied, "prompt_n")) == (0, figure(first, "prompt_n"))
    assert figure(copied, "prompt_ms") > 0.5 * figure(first, "prompt_ms")
