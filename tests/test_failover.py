"""A llama-server that goes away in the middle of an answer: it goes on as one text, and whoever waits knows why."""

import re
from collections.abc import Iterator

import pytest

from conversations import places, turns
from conversations.models import Generation
from conversations.sending import Turn
from conversations.worker.running import Run
from conversations.worker.writer import Writer
from slots import causes
from slots.client import Stream, StreamBroken
from slots.models import PastLease, Server
from slots.reading import Event
from slots.renewal import Renewal
from slots.watch import Watch
from tests import factories
from tests.answers import ended, look, written
from tests.eventually import eventually
from tests.fake_llama import FakeLlama, Script
from tests.follower import Follower
from tests.llama import real_llama_server
from tests.stack import StartProcess
from tests.web import Web

pytestmark = pytest.mark.django_db(transaction=True)

THOUGHT = " ".join(f"step{number}" for number in range(40))
CODE = """Like this:

```python
def boil(water):
    return [
        steam
        for steam in water
    ]
```

All."""
QUESTION = 31  # tokens of the scripted server's prompt with three words in it
SCRIPTS = (Script(text=CODE, match="Show"), Script(reasoning=THOUGHT, text="Steam.", match="Why"))


def ready(server: FakeLlama) -> None:
    Server.objects.get_or_create(url=server.url)
    eventually(lambda: Server.objects.filter(url=server.url, state="ready", trouble="").exists(), 30)


def reason(turn: Turn) -> str | None:
    return next((place.reason for place in places.read() if place.generation == turn.generation.pk), "not queued")


def test_what_was_cut_in_a_thought_and_in_a_block_of_code_goes_on_elsewhere_with_the_same_model(
    web: Web, start_worker: StartProcess
) -> None:
    with FakeLlama(slots=2, rate=12) as dying, FakeLlama() as sound, FakeLlama(alias="another") as other:
        for script in SCRIPTS:
            dying.script(script)
            sound.script(script)
        start_worker(LLAMA_SERVERS=dying.url)
        shown, thought = (factories.sent(factories.conversation(), words) for words in ("Show me.", "Why?"))
        follower = Follower(web.person("alice"), shown)
        eventually(lambda: "```python" in look(shown).text, 30, what="code")
        eventually(lambda: len(look(thought).reasoning) > 20, 30, what="a thought")
        ready(other)
        waiting = factories.sent(factories.conversation(factories.person("bob"), model="scripted"), "I wait")
        dying.stop()
        eventually(lambda: reason(shown) == reason(thought) == places.WENT_AWAY, 10)
        assert "scripted" in (reason(waiting) or "")
        assert look(shown).text in CODE
        ready(sound)
        views = [ended(turn) for turn in (shown, thought, waiting)]
    assert [(view.status, view.text) for view in views[:2]] == [("done", CODE), ("done", "Steam.")]
    assert views[1].reasoning.strip() == THOUGHT
    assert follower.finished() == CODE
    assert views[2].status == "done"
    assert [record for record in other.requests if not record.raw] == []
    sent = [record.body for record in sound.requests if "continue_final_message" in record.body]
    assert {body["continue_final_message"] for body in sent} == {True, "reasoning_content"}
    for view in views[:2]:
        assert view.timings
        assert view.usage
        assert view.timings["replay_cause"] == "moved"
        assert view.usage["completion_tokens"] > view.timings["prompt_n"] - view.usage["prompt_tokens"] > 4
        # Of the question alone: what was written before the fall is in the prompt that was read after it.
        assert view.usage["prompt_tokens"] == pytest.approx(QUESTION, abs=2), view.usage
        assert Generation.objects.get(pk=view.id).attempt == 2


def test_a_cause_is_where_it_went_on_and_what_became_of_the_server() -> None:
    here, there = factories.server(url="http://here.test"), factories.server(url="http://there.test")
    claim = factories.running(on=here)
    turns.requeue(claim, refund=False)
    assert causes.why_cold(claim.conversation, there.pk) == "moved"
    assert causes.why_cold(claim.conversation, here.pk) == "cache_lost"
    Server.objects.filter(pk=here.pk).update(boot_at=factories.ago(0))
    assert causes.why_cold(claim.conversation, here.pk) == "server_restarted"


def test_only_what_has_begun_to_be_written_is_bound_to_its_model() -> None:
    servers = [factories.server(url=f"http://{model}.test", model=model) for model in ("one", "two")]
    for words, model in (("", ""), ("Some", "one")):
        claim = factories.running(factories.conversation(), servers[0])
        if words:
            factories.wrote(claim, words)
        turns.requeue(claim, refund=False)
        assert Generation.objects.get(pk=claim.generation).model == model
        goes_on = turns.claim(factories.WORKER, [servers[1].pk])
        assert (goes_on is None) == bool(words)
        turns.cancel(Generation.objects.get(pk=claim.generation).owner_id, claim.generation)


def test_what_waits_after_a_fall_though_a_server_is_there_is_told_that_it_goes_on_first() -> None:
    claim = factories.running(on=factories.server(slots=1))
    factories.wrote(claim, "So far")
    turns.requeue(claim, refund=False)
    assert [place.reason for place in places.read()] == [places.INTERRUPTED]


def test_an_answer_of_which_only_the_figures_are_missing_is_done(
    fake_llama: FakeLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server died behind its last word: to go on would add to what was at its end."""
    whole = Stream.events

    def cut(self: Stream) -> Iterator[Event]:
        for event in whole(self):
            if event.done:
                raise StreamBroken("It broke off.")
            yield event

    monkeypatch.setattr(Stream, "events", cut)
    claim = factories.running(on=factories.server(url=fake_llama.url, slots=4))
    writer = Writer()
    run = Run(claim, Watch(), Renewal(), writer)
    run.thread.start()

    def stored() -> bool:
        writer.round()
        return not run.thread.is_alive()

    eventually(stored)
    view = look(claim)
    assert (view.status, view.finish_reason, len(view.text) > 20) == ("done", "stop", True)


@pytest.mark.llama
def test_the_real_server_killed_in_the_middle_of_an_answer_is_gone_on_with_as_one_text(
    web: Web, start_worker: StartProcess
) -> None:
    with real_llama_server(slots=1, slot_context=512) as server:
        start_worker(LLAMA_SERVERS=server.url.replace("//", f"//:{server.api_key}@"))
        where = factories.conversation(params={"max_tokens": 50, "temperature": 0})
        turn = factories.sent(where, "Write a story about a ship.")
        follower = Follower(web.person("alice"), turn)
        before = written(turn, 30, timeout=60)
        server.kill()
        eventually(lambda: reason(turn) == places.WENT_AWAY, 10)
        server.start()
        view = ended(turn, 60)
        assert follower.finished() == view.text
    assert view.timings
    assert view.usage
    assert (view.status, view.timings["replay_cause"]) == ("done", "server_restarted")
    assert view.text.startswith(before.text)
    assert len(view.text) > len(before.text) + 20
    assert view.usage["completion_tokens"] in (50, 51)
    assert view.timings["prompt_n"] - view.usage["prompt_tokens"] >= 5
    assert not re.search(r"(\b\w+ \w+ \w+ \w+)\1", view.text), "a piece came twice"
    assert PastLease.objects.filter(holder=where.pk, phase="busy").count() == 2
