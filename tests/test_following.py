"""How an event joins what a client has, and when Postgres is asked."""

import inspect
import re
import uuid
from pathlib import Path
from typing import Any

import pytest

from conversations import errors, frames, incoming
from conversations.allowance import BURST, PER_SECOND, Allowance
from conversations.following import SILENCE, Fit, Following
from conversations.models import Generation

GENERATION, CONVERSATION = str(uuid.uuid4()), str(uuid.uuid4())


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def following(clock: Clock) -> Following:
    following = Following(clock)
    following.begin({"id": GENERATION, "conversation": CONVERSATION, "seq": 5, "status": "running"})
    return following


def event(**fields: Any) -> dict[str, Any]:
    return {"type": "generation.delta", "conversation": CONVERSATION, "generation": GENERATION, **fields}


@pytest.mark.parametrize(("seq", "fit"), [(4, Fit.OLD), (5, Fit.OLD), (6, Fit.NEXT), (7, Fit.HOLE), (None, Fit.NEXT)])
def test_only_the_next_event_is_next(following: Following, seq: int | None, fit: Fit) -> None:
    assert following.judge(event(**({} if seq is None else {"seq": seq}))) is fit


def test_an_unknown_generation_is_a_hole(following: Following) -> None:
    assert following.judge(event(generation=str(uuid.uuid4()), seq=1)) is Fit.HOLE


def test_an_event_counts_once(following: Following) -> None:
    assert [following.judge(event(seq=6)) for _ in range(2)] == [Fit.NEXT, Fit.OLD]


def test_progress_after_the_end_is_old(following: Following) -> None:
    assert following.judge(event(seq=6, status="done")) is Fit.NEXT
    assert following.judge(event(processed=5)) is Fit.OLD


def test_a_generation_that_no_snapshot_shows_is_skipped_once(following: Following) -> None:
    ahead = event(seq=9)
    assert following.judge(ahead) is Fit.HOLE
    following.skip(ahead)
    assert following.judge(event(seq=10)) is Fit.NEXT


def test_silence_is_told_once_per_silence(following: Following, clock: Clock) -> None:
    assert following.silent() == []
    clock.now += SILENCE
    assert [(silent.seq, str(silent.generation)) for silent in following.silent()] == [(5, GENERATION)]
    assert following.silent() == []
    clock.now += SILENCE / 2
    following.judge(event(processed=1))
    clock.now += SILENCE / 2
    assert following.silent() == []


def test_whoever_asks_says_what_the_client_was_told_of_its_place(following: Following, clock: Clock) -> None:
    def told() -> tuple[int | None, str | None]:
        clock.now += SILENCE
        (silent,) = following.silent()
        return silent.place, silent.reason

    assert told() == (None, None)
    following.begin({"id": GENERATION, "conversation": CONVERSATION, "seq": 5, "status": "queued", "place": 3})
    assert told() == (3, None)
    following.judge(event(place=2, reason="It is away."))
    assert told() == (2, "It is away.")
    following.judge(event(seq=5))
    assert told() == (2, "It is away."), "an event that it had already is not sent"
    following.judge(event(processed=10))
    assert told() == (None, None)
    following.judge(event(place=1, reason=None))
    following.judge(event(seq=6))
    assert told() == (None, None)


def test_nobody_waits_for_what_has_ended_or_is_forgotten(following: Following, clock: Clock) -> None:
    other = str(uuid.uuid4())
    following.begin({"id": other, "conversation": str(uuid.uuid4()), "seq": 1, "status": "done"})
    following.forget_conversation(CONVERSATION)
    clock.now += 10 * SILENCE
    assert following.silent() == []


def test_a_snapshot_that_was_read_while_it_began_says_that_it_waits_though_it_has_no_place(
    following: Following, clock: Clock
) -> None:
    following.begin({"id": GENERATION, "conversation": CONVERSATION, "seq": 0, "status": "queued", "place": None})
    for frame, waits in ((None, True), (event(processed=1), False), (event(place=1), True), (event(seq=1), False)):
        if frame:
            following.judge(frame)
        clock.now += SILENCE
        assert [silent.waits for silent in following.silent()] == [waits]


def test_what_a_snapshot_does_not_show_is_not_waited_for(following: Following, clock: Clock) -> None:
    elsewhere, shown = str(uuid.uuid4()), str(uuid.uuid4())
    following.begin({"id": elsewhere, "conversation": str(uuid.uuid4()), "seq": 1, "status": "running"})
    following.begin_all(CONVERSATION, [{"id": shown, "conversation": CONVERSATION, "seq": 0, "status": "queued"}])
    clock.now += SILENCE
    assert {str(silent.generation) for silent in following.silent()} == {elsewhere, shown}


def test_frames_are_allowed_in_bursts_and_then_at_a_pace(clock: Clock) -> None:
    allowance = Allowance(clock)
    for _ in range(BURST):
        allowance.take()
    with pytest.raises(errors.TooMany):
        allowance.take()
    clock.now += 1.5 / PER_SECOND
    allowance.take()
    with pytest.raises(errors.TooMany):
        allowance.take()
    clock.now += 3600
    for _ in range(BURST):
        allowance.take()
    with pytest.raises(errors.TooMany):
        allowance.take()


def test_the_protocol_page_names_every_frame() -> None:
    page = (Path(__file__).parent.parent / "docs/protocol.md").read_text()
    ends = {f"generation.{status}" for status in Generation.Status.values if status not in Generation.LIVE}
    named = set(re.findall(r'"type": "([\w.]+)"|_about\("([\w.]+)"', inspect.getsource(frames)))
    sent = {one or other for one, other in named} | ends
    assert len(sent) > 10
    for type_ in sent | set(incoming.SHAPES):
        assert f"`{type_}`" in page, type_
