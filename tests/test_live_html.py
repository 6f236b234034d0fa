"""When a socket is sent an answer as HTML, and how much of it."""

import asyncio
import uuid
from typing import Any

import pytest

from conversations.live_html import AGAIN, LONGEST, SHORTEST, LiveHtml
from tests.test_following import Clock

GENERATION, CONVERSATION, MESSAGE = (str(uuid.uuid4()) for _ in range(3))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def live(clock: Clock) -> LiveHtml:
    """An answer without text yet, followed as HTML."""
    live = LiveHtml(clock)
    live.follow(CONVERSATION, wanted=True)
    live.begin(message())
    return live


def message(text: str = "", seq: int = 0, status: str = "running", **more: Any) -> dict[str, Any]:
    state = {"id": GENERATION, "conversation": CONVERSATION, "seq": seq, "status": status}
    return {"id": MESSAGE, "role": "assistant", "text": text, "generation": state, **more}


def delta(text: str, seq: int = 1, part: str = "text") -> dict[str, Any]:
    about = {"type": "generation.delta", "conversation": CONVERSATION, "generation": GENERATION}
    return {**about, "seq": seq, "part": part, "text": text}


def end(seq: int = 2) -> dict[str, Any]:
    about = {"type": "generation.done", "conversation": CONVERSATION, "generation": GENERATION}
    return {**about, "seq": seq, "status": "done"}


def rendered(live: LiveHtml, *blocks: str) -> dict[str, Any] | None:
    """The frame for what is due now, which is rendered as `blocks`."""
    (job,) = live.take()
    return live.done(job, list(blocks))


def test_the_first_is_due_at_once(live: LiveHtml) -> None:
    assert live.due_in() is None
    live.hear(delta("Steam"))
    assert live.due_in() == 0
    (job,) = live.take()
    assert (job.text, job.final, str(job.message)) == ("Steam", False, MESSAGE)
    assert live.done(job, ["<p>Steam</p>"]) == {
        "type": "message.html", "conversation": CONVERSATION, "generation": GENERATION, "message": MESSAGE,
        "seq": 1, "keep": 0, "blocks": ["<p>Steam</p>"], "final": False,
    }  # fmt: skip
    assert live.due_in() is None


def test_blocks_that_are_shown_already_are_kept(live: LiveHtml) -> None:
    live.hear(delta("a"))
    rendered(live, "<p>a</p>", "<p>b</p>", "<p>c</p>")
    live.hear(end())
    frame = rendered(live, "<p>a</p>", "<p>B</p>", "<p>c</p>")
    assert frame
    assert (frame["keep"], frame["blocks"]) == (1, ["<p>B</p>", "<p>c</p>"])


def test_blocks_that_are_gone_are_not_kept(live: LiveHtml) -> None:
    live.hear(delta("a"))
    rendered(live, "<p>a</p>", "<p>b</p>")
    live.hear(end())
    frame = rendered(live, "<p>a</p>")
    assert frame
    assert (frame["keep"], frame["blocks"]) == (1, [])


def test_nothing_is_sent_when_nothing_changed_until_the_last(live: LiveHtml, clock: Clock) -> None:
    live.hear(delta("a"))
    rendered(live, "<p>a</p>")
    live.hear(delta("\n", 2))
    clock.now += 1
    assert rendered(live, "<p>a</p>") is None
    assert live.due_in() is None
    live.hear(end(3))
    frame = rendered(live, "<p>a</p>")
    assert frame
    assert (frame["keep"], frame["blocks"], frame["final"], frame["seq"]) == (1, [], True, 3)
    assert live.due_in() is None


def test_reasoning_changes_nothing(live: LiveHtml) -> None:
    live.hear(delta("hm", part="reasoning"))
    assert live.due_in() is None


def test_an_answer_is_rendered_at_most_ten_times_a_second(live: LiveHtml, clock: Clock) -> None:
    times = []
    for step in range(2_000):  # ten seconds, an event each 5 ms
        live.hear(delta("x ", step + 1))
        if live.due_in() == 0:
            times.append(clock.now)
            assert rendered(live, f"<p>{step}</p>")
        clock.now += 0.005
    assert 90 <= len(times) <= 101
    # Two renderings may be a moment nearer than the interval when one was late; ten never are within a second.
    assert all(late - early > 10 * SHORTEST - 0.01 for early, late in zip(times[1:], times[11:], strict=False))


def test_what_takes_long_is_rendered_seldom(live: LiveHtml, clock: Clock) -> None:
    spent, seq = 0.0, 0
    began = clock.now
    while clock.now < began + 60:
        seq += 1
        live.hear(delta("x", seq))
        if live.due_in() == 0:
            (job,) = live.take()
            clock.now += 0.05
            spent += 0.05
            live.done(job, [f"<p>{seq}</p>"])
        clock.now += 0.01
    assert 0.03 < spent / 60 <= 0.1


def test_much_is_sent_seldom(live: LiveHtml, clock: Clock) -> None:
    live.hear(delta("x"))
    rendered(live, "x" * 100_000)
    live.hear(delta("y", 2))
    wait = live.due_in()
    assert wait is not None
    assert 3 * SHORTEST < wait <= LONGEST


def test_sockets_of_a_process_are_due_at_the_same_moments(clock: Clock) -> None:
    """Then what is rendered for one serves the others."""
    tabs = []
    for begins in (0.0, 0.033, 0.071):
        clock.now = 100 + begins
        tab = LiveHtml(clock)
        tab.follow(CONVERSATION, wanted=True)
        tab.begin(message())
        tab.hear(delta("x"))
        rendered(tab, "<p>x</p>")
        tabs.append(tab)
    clock.now = 101.05
    for seq in range(2, 6):
        for tab in tabs:
            tab.hear(delta("y", seq))
        waits = {round(wait, 6) for tab in tabs if (wait := tab.due_in()) is not None}
        assert len(waits) == 1
        clock.now += waits.pop() + 0.001
        for tab in tabs:
            rendered(tab, f"<p>{seq}</p>")
        clock.now += 0.003


def test_an_end_is_rendered_at_once_and_for_good(live: LiveHtml) -> None:
    live.hear(delta("a"))
    rendered(live, "<p>a</p>")
    live.hear(delta("b", 2))
    live.hear(end(3))
    assert live.due_in() == 0
    (job,) = live.take()
    assert (job.text, job.final) == ("ab", True)
    frame = live.done(job, ["<p>ab</p>"])
    assert frame
    assert frame["final"]
    live.hear(delta("never", 4))
    assert live.due_in() is None


def test_an_answer_without_text_has_a_last_frame_too(live: LiveHtml) -> None:
    live.hear(end(1))
    frame = rendered(live)
    assert frame
    assert (frame["keep"], frame["blocks"], frame["final"]) == (0, [], True)


def test_what_postgres_did_not_take_is_tried_again(live: LiveHtml, clock: Clock) -> None:
    live.hear(end())
    (job,) = live.take()
    live.put_off(job)
    assert live.take() == []
    assert live.due_in() == AGAIN
    clock.now += AGAIN
    frame = rendered(live, "<p>a</p>")
    assert frame
    assert frame["final"]


def test_after_a_snapshot_frames_go_on_from_its_html(live: LiveHtml) -> None:
    live.hear(delta("a"))
    rendered(live, "<p>old</p>")
    live.begin(message("a\n\nb", 4, html=["<p>a</p>", "<p>b</p>"]))
    assert live.due_in() is None
    live.hear(delta("c", 5))
    frame = rendered(live, "<p>a</p>", "<p>bc</p>")
    assert frame
    assert (frame["seq"], frame["keep"], frame["blocks"]) == (5, 1, ["<p>bc</p>"])


def test_a_finished_answer_in_a_snapshot_needs_nothing_more(live: LiveHtml) -> None:
    live.begin(message("a", 4, "done", html=["<p>a</p>"]))
    assert live.due_in() is None
    live.hear(delta("b", 5))
    assert live.due_in() is None


@pytest.mark.parametrize(("status", "final"), [("running", False), ("done", True)])
def test_a_message_that_came_with_text_but_without_html_is_rendered(live: LiveHtml, status: str, final: bool) -> None:
    """As the answer to a send that was repeated."""
    live.begin(message("so far", 3, status))
    frame = rendered(live, "<p>so far</p>")
    assert frame
    assert (frame["keep"], frame["final"]) == (0, final)


def test_nobody_who_did_not_ask_is_sent_html(clock: Clock) -> None:
    live = LiveHtml(clock)
    live.follow(CONVERSATION, wanted=False)
    live.begin(message("a", 1))
    live.hear(delta("b", 2))
    live.hear(end(3))
    assert live.due_in() is None


def test_what_is_left_is_forgotten(live: LiveHtml) -> None:
    live.hear(delta("a"))
    live.forget(CONVERSATION)
    assert live.due_in() is None
    assert not live.wanted(CONVERSATION)


async def test_waiting_ends_when_something_comes(live: LiveHtml, clock: Clock) -> None:
    waiting = asyncio.create_task(live.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    live.hear(delta("a"))
    await asyncio.wait_for(waiting, 5)


def test_of_an_answer_that_is_gone_on_with_only_the_newest_state_is_rendered(live: LiveHtml) -> None:
    live.hear(delta("So far"))
    live.hear(end())
    again = message("So far")
    live.begin({**again, "generation": {**again["generation"], "id": str(uuid.uuid4())}})
    assert [(job.text, job.final) for job in live.take()] == [("So far", False)]
