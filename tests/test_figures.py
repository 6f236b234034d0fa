"""Every answer tells what it cost, however it ended."""

import pytest

from conversations import frames, turns, unmeasured
from conversations.api.serializers import Timings, Usage
from conversations.history import GenerationView
from conversations.models import Generation
from slots import leases
from tests import factories
from tests.answers import ended, look, written
from tests.fake_llama import FakeLlama, Script
from tests.stack import StartProcess


def told(view: GenerationView) -> dict[str, dict[str, object]]:
    """What a client gets, checked to have every field."""
    frame = frames.ended(view)
    assert set(frame["usage"]) == set(Usage().fields)
    assert set(frame["timings"]) >= set(Timings().fields)
    return {"usage": frame["usage"], "timings": frame["timings"]}


@pytest.mark.django_db
def test_who_stops_waiting_is_told_how_long_that_was_and_nothing_that_is_not_so() -> None:
    turn = factories.sent()
    Generation.objects.filter(pk=turn.generation.pk).update(queued_at=factories.ago(5))
    turns.cancel(turn.generation.owner_id, turn.generation.pk)
    figures = told(look(turn))
    assert figures["usage"] == {"prompt_tokens": None, "completion_tokens": 0}
    assert 5000 <= int(str(figures["timings"].pop("queue_ms"))) < 6000
    assert set(figures["timings"].values()) == {None}
    assert set(figures["timings"]) == set(unmeasured.UNKNOWN)


@pytest.mark.django_db
def test_an_answer_whose_workers_all_went_away_has_the_tokens_that_were_stored() -> None:
    claim = factories.running()
    factories.wrote(claim, "Steam ", "pushes")
    Generation.objects.filter(pk=claim.generation).update(attempt=turns.ATTEMPTS)
    leases.revoke(claim.grant.slot, claim.grant.fence)
    assert turns.rescue()
    view = look(claim)
    assert view.status == "interrupted"
    assert told(view)["usage"] == {"prompt_tokens": None, "completion_tokens": 2}


@pytest.mark.django_db(transaction=True)
def test_a_stopped_and_a_failed_answer_have_their_figures_and_a_thought_its_time(
    fake_llama: FakeLlama, start_worker: StartProcess
) -> None:
    start_worker(LLAMA_SERVERS=fake_llama.url)
    fake_llama.script(Script(text="Four.", reasoning="Two and two. " * 4, rate=40, match="2 + 2"))
    stopped = factories.sent(factories.conversation(), "Go on [[tokens=200 rate=50]]")
    thought = factories.sent(factories.conversation(), "2 + 2?")
    failed = factories.sent(factories.conversation(), "Fail [[fault=400]]")
    written(stopped)
    turns.cancel(stopped.generation.owner_id, stopped.generation.pk)
    figures = told(ended(stopped))
    assert figures["usage"]["prompt_tokens"]
    assert int(str(figures["usage"]["completion_tokens"])) > 2
    assert 20 < float(str(figures["timings"]["tokens_per_second"])) < 80
    assert figures["timings"]["ttft_ms"]
    assert told(ended(failed))["usage"] == {"prompt_tokens": None, "completion_tokens": 0}
    spent = told(ended(thought))["timings"]["thinking_ms"]
    assert 200 < int(str(spent)) < 3000
    assert figures["timings"]["thinking_ms"] is None
