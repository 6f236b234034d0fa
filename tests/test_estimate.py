"""How long people are told they will wait, and how far off that is."""

import random
import statistics
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db.models.functions import Now
from pytest_django import Settings

from conversations import estimate, places, turns
from conversations.claims import Claim
from conversations.estimate import Estimate, Running, Sample, SlotNow, Waiter, estimates
from conversations.models import Conversation, Generation
from conversations.sending import Turn
from conversations.turns import Ending
from slots import leases
from slots.models import Server, Slot
from tests import factories
from tests.answers import ended
from tests.eventually import eventually
from tests.fake_llama import FakeLlama
from tests.stack import StartProcess

MODEL = "smollm2"
FIXED = [Sample(MODEL, 100, 50.0, 1, 40, 0.4)] * 20  # 100 tokens in 2 s each, after 10 ms for each token of the prompt
PERSON = 1


def waiter(prompt: float | None = 0, most: float = 512, model: str = MODEL, owner: int | None = None) -> Waiter:
    owner = owner if owner is not None else random.Random(str(uuid.uuid4())).randint(2, 10**9)
    return Waiter(uuid.uuid4(), uuid.uuid4(), owner, model, 1, 0, True, False, prompt, most)


def running(written: float = 0, prompt: float = 0, seconds: float = 0, most: float = 512) -> Running:
    return Running(uuid.uuid4(), PERSON, seconds, written, prompt, most)


def slot(runs: Running | None = None, slots: int = 1, model: str = MODEL) -> SlotNow:
    return SlotNow(model, slots, runs is not None, runs)


def exact(slots: Sequence[SlotNow], waiting: Sequence[Waiter], samples: Sequence[Sample] = FIXED) -> list[int]:
    """The lower ends; where every answer was alike the upper ends are next to them."""
    found = estimates(slots, waiting, samples)
    assert all(one and one.high == one.low + 1 for one in found), found
    return [one.low for one in found if one]


class TestWithoutTheDatabase:
    def test_those_before_and_what_runs_take_what_answers_took_before(self) -> None:
        assert exact([slot(running(written=50))], [waiter(), waiter(), waiter()]) == [1, 3, 5]

    def test_reading_the_prompt_counts_too_the_own_and_that_of_those_before(self) -> None:
        assert exact([slot(running(written=50))], [waiter(prompt=100), waiter(prompt=200)]) == [2, 6]

    def test_what_still_reads_has_the_rest_of_its_prompt_and_all_of_its_answer_before_it(self) -> None:
        assert exact([slot(running(prompt=300, seconds=1))], [waiter()]) == [4]

    def test_a_free_slot_is_no_wait_and_two_share_the_line(self) -> None:
        assert exact([slot(), slot(running(written=50))], [waiter(), waiter(), waiter()]) == [0, 1, 2]

    def test_nobody_writes_more_than_was_asked_for(self) -> None:
        assert exact([slot()], [waiter(most=50), waiter()]) == [0, 1]
        assert exact([slot(running(written=50, most=50))], [waiter()]) == [0]

    def test_an_answer_longer_than_any_before_may_go_on_to_its_bound(self) -> None:
        (found,) = estimates([slot(running(written=400, most=500))], [waiter()], FIXED)
        assert found
        assert (found.low, found.high) == (0, 2)

    def test_who_may_have_no_more_at_once_waits_for_an_own_one(self, settings: Settings) -> None:
        settings.QUEUE_RUNNING_PER_PERSON = 1
        mine, other = waiter(owner=PERSON), waiter()
        assert exact([slot(running(written=0)), slot()], [other, mine]) == [0, 2]

    def test_a_model_has_its_own_slots_and_any_takes_the_first(self) -> None:
        slots = [slot(running(written=50), model="large"), slot(running(written=0), model="small")]
        waiting = [waiter(model="large"), waiter(model="small"), waiter(model="")]
        assert exact(slots, waiting) == [1, 2, 3]

    def test_without_anything_to_learn_from_or_a_slot_nothing_is_said(self) -> None:
        assert estimates([slot()], [waiter()], []) == [None]
        assert estimates([], [waiter(), waiter(model="")], FIXED) == [None, None]
        assert estimates([slot(model="other")], [waiter()], FIXED) == [None]
        assert estimates([slot()], [waiter()], [Sample(MODEL, 10, None, 1, None, None)] * 9) == [None]

    def test_the_speed_is_that_at_the_load_that_whoever_waits_will_meet(self) -> None:
        slowed = [Sample(MODEL, 100, 50.0, 1, None, None)] * 8 + [Sample(MODEL, 100, 10.0, 4, None, None)] * 8
        busy = [slot(running(), slots=4) for _ in range(4)]
        assert exact(busy, [waiter()], slowed) == [10]
        assert exact([slot(running())], [waiter()], slowed) == [2]

    def test_a_load_never_met_lies_between_no_slower_and_sharing(self) -> None:
        (found,) = estimates([slot(running(), slots=4) for _ in range(4)], [waiter()], FIXED)
        assert found
        assert 2 < found.middle < 8

    def test_answers_of_another_model_serve_until_there_are_enough_of_its_own(self) -> None:
        other = [sample._replace(model="large") for sample in FIXED]
        slow = [sample._replace(per_second=5.0) for sample in FIXED]
        assert exact([slot(running())], [waiter()], other) == [2]
        assert exact([slot(running())], [waiter()], [*slow[: estimate.ENOUGH], *other]) == [20]

    def test_few_answers_make_a_wider_range_than_many(self) -> None:
        (few,) = estimates([slot(running())], [waiter()], FIXED[:1])
        (many,) = estimates([slot(running())], [waiter()], FIXED)
        assert few
        assert many
        assert few.low < many.low < many.high < few.high + 1

    def test_far_behind_time_goes_on_in_proportion_to_the_places(self) -> None:
        line = [replace(waiter(prompt=0 if place <= 2 else None), place=place) for place in range(1, 5)]
        assert exact([slot(running(written=50))], line) == [1, 3, 4, 6]
        (_, other) = estimates([slot(running())], [line[0], waiter(prompt=None, model="other")], FIXED)
        assert other is None

    def test_the_range_holds_the_middle_of_what_may_happen(self) -> None:
        """Against waits played by chance: about three fifths of them fall into it."""
        rng = random.Random(3)
        lengths = [rng.randint(10, 400) for _ in range(150)]
        samples = [Sample(MODEL, length, 20.0, 1, None, None) for length in lengths]
        within = []
        for _ in range(20):
            (*_, found) = estimates([slot(running())], [waiter() for _ in range(6)], samples)
            assert found
            played = [sum(rng.choice(lengths) for _ in range(6)) / 20 for _ in range(500)]
            within.append(sum(found.low <= seconds <= found.high for seconds in played) / len(played))
        assert 0.5 < statistics.mean(within) < 0.75, within

    def test_nobody_is_told_another_number_without_cause(self) -> None:
        waiting = [waiter() for _ in range(5)]
        rng = random.Random(4)
        samples = [Sample(MODEL, rng.randint(10, 400), 20.0, 1, None, None) for _ in range(150)]
        runs = running(written=5)
        assert estimates([slot(runs)], waiting, samples) == estimates([slot(runs)], waiting, samples)
        fewer = estimates([slot(runs)], waiting[:3], samples)
        assert fewer == estimates([slot(runs)], waiting, samples)[:3]

    @pytest.mark.parametrize(
        ("seconds", "low", "high"), [(3.4, 3, 4), (13, 12, 14), (41, 40, 45), (61, 60, 75), (400, 360, 420)]
    )
    def test_numbers_are_as_coarse_as_the_wait_is_long(self, seconds: float, low: int, high: int) -> None:
        samples = [Sample(MODEL, 100 * seconds, 100.0, 1, None, None)] * 20
        assert estimates([slot(running(most=1e9))], [waiter()], samples) == [Estimate(low, high)]


@pytest.mark.django_db
class TestWithTheDatabase:
    def test_prompts_are_guessed_from_the_last_count_and_the_bytes_of_the_message(self) -> None:
        server = factories.server(slots=1)
        where = factories.conversation(params={"max_tokens": 77})
        answered(factories.running(where, server), usage={"prompt_tokens": 300, "completion_tokens": 50})
        factories.sent(where, "word " * 80)
        factories.sent(factories.conversation(), "蒸汽机" * 40)
        first, second = estimate.waiting(10)
        assert (first.prompt, first.most) == (450, 77)
        assert (second.prompt, second.most) == (90, 512)

    def test_of_a_conversation_that_outgrew_the_context_half_of_that_is_read(self) -> None:
        where = factories.conversation()
        answered(factories.running(where, factories.server(slots=1)), {"prompt_tokens": 1500, "completion_tokens": 30})
        for words, tokens in (("word", 1531), ("word " * 8, 1024)):
            turn = factories.sent(where, words)
            assert [one.prompt for one in estimate.waiting(10)] == [tokens]
            turns.cancel(where.owner_id, turn.generation.pk)
            Conversation.objects.filter(pk=where.pk).update(leaf=turn.message.parent)

    def test_those_far_behind_are_not_looked_at_one_by_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(estimate, "PLAYED", 1)
        for _ in range(3):
            factories.sent(words="word " * 80)
        assert [(one.place, one.prompt) for one in estimate.waiting(10)] == [(1, 100), (2, None), (3, None)]

    def test_odd_params_of_a_conversation_break_nobody_s_estimate(self) -> None:
        odd: tuple[object, ...] = ({"max_tokens": "many"}, {"max_tokens": None}, {"max_tokens": 1.5}, [], "x")
        for params in odd:
            factories.sent(factories.conversation(params=params))
        assert [one.most for one in estimate.waiting(10)] == [512, 512, 1.5, 512, 512]

    def test_what_runs_is_known_by_what_is_stored_of_it(self) -> None:
        server = factories.server(slots=2)
        claim = factories.running(on=server)
        factories.wrote(claim, "Steam ", "pushes ")
        busy, free = estimate.slots_now()
        assert (busy.busy, free.busy, free.running) == (True, False, None)
        assert busy.running
        assert (busy.running.id, busy.running.written, busy.slots) == (claim.generation, 2, 2)

    def test_a_slot_that_nobody_can_lease_serves_nobody(self) -> None:
        server = factories.server(slots=2)
        Slot.objects.filter(id_slot=1).update(condition="gone")
        assert len(estimate.slots_now()) == 1
        Server.objects.filter(pk=server.pk).update(trouble="It does not answer.")
        assert estimate.slots_now() == []

    def test_while_nothing_can_answer_there_is_a_reason_and_no_estimate(self) -> None:
        server = factories.server(slots=1)
        answered(factories.running(on=server))
        factories.running(on=server)
        factories.sent()
        (place,) = places.read()
        assert place.estimate
        assert place.reason is None
        Server.objects.filter(pk=server.pk).update(trouble="It does not answer.")
        (place,) = places.read()
        assert (place.estimate, place.reason) == (None, "It does not answer.")

    def test_the_first_estimate_is_kept_and_how_far_off_it_was_is_noted_at_the_end(self) -> None:
        server = factories.server(slots=1)
        answered(factories.running(on=server))
        first = factories.running(on=server)
        turn = factories.sent()
        told = places.read()
        turns.note_estimates(told)
        turns.note_estimates([place_with(told[0], Estimate(1000, 2000))])
        row = Generation.objects.get(pk=turn.generation.pk)
        assert told[0].estimate
        assert (row.estimate_low, row.estimate_high) == (told[0].estimate.low, told[0].estimate.high)
        assert not places.read()[0].untold
        Generation.objects.filter(pk=row.pk).update(
            queued_at=Now() - timedelta(seconds=12), estimated_at=Now() - timedelta(seconds=10),
            estimate_low=10, estimate_high=20,
        )  # fmt: skip
        answered(first)
        claim = turns.claim(factories.WORKER, [server.pk])
        assert claim
        turns.finish(claim, done(ttft_ms=12_000))
        timings = Generation.objects.get(pk=row.pk).timings
        assert timings
        assert timings["estimate_error"] == pytest.approx(0.5, abs=0.02)
        assert timings["busy"] == 1

    def test_who_never_was_given_one_has_no_error(self) -> None:
        claim = factories.running()
        turns.finish(claim, done(ttft_ms=50))
        assert Generation.objects.get(pk=claim.generation).timings["estimate_error"] is None  # type: ignore[index]


def done(ttft_ms: int | None = 400, usage: dict[str, int] | None = None) -> Ending:
    timings = {"ttft_ms": ttft_ms, "queue_ms": 0, "prompt_n": 40, "tokens_per_second": 50.0}
    usage = usage or {"prompt_tokens": 40, "completion_tokens": 100}
    return Ending(Generation.Status.DONE, "stop", usage=usage, timings=timings)


def answered(claim: Claim, usage: dict[str, int] | None = None) -> None:
    turns.finish(claim, done(usage=usage))
    leases.release(claim.grant, 10, 1)


def place_with(place: places.Place, guess: Estimate) -> places.Place:
    return places.Place(
        place.generation, place.conversation, place.owner, place.place, place.reason, guess, place.untold
    )


PEOPLE, TURNS, LEARNED = 5, 20, 8
RATE, PREFILL = 100, 1000  # tokens a second


@pytest.mark.django_db(transaction=True)
def test_on_one_slot_half_of_the_estimates_are_off_by_a_third_at_most(start_worker: StartProcess) -> None:
    """Answers of 20 to 180 tokens, prompts of 20 to 320; each person asks again as soon as the answer is there."""
    rng = random.Random(11)
    with FakeLlama(slots=1, n_ctx=8192, rate=RATE, prefill_rate=PREFILL) as server:
        start_worker(LLAMA_SERVERS=server.url)
        for _ in range(LEARNED):
            ended(ask(factories.conversation(), rng))
        people = [factories.conversation(factories.person(f"person{number}")) for number in range(PEOPLE)]
        asked = [ask(where, rng) for where in people]
        while len(asked) < TURNS:
            where = eventually(lambda: next(filter(silent, people), None), 20, what="somebody's answer")
            assert where
            asked.append(ask(where, rng))
        errors = [timings.get("estimate_error") for turn in asked if (timings := ended(turn, 40).timings)]
    known = [abs(error) for error in errors if error is not None]
    assert len(known) >= TURNS - 2  # the first of all began at once
    assert statistics.median(known) <= 0.35, errors


def ask(where: Conversation, rng: random.Random) -> Turn:
    script = f"[[tokens={rng.randint(20, 180)}]]"
    return factories.sent(where, f"{script} {'word ' * rng.randint(20, 320)}")


def silent(where: Conversation) -> bool:
    """Whether the last answer is there, so that its person can go on."""
    return not Generation.objects.filter(conversation=where, status__in=Generation.LIVE).exists()
