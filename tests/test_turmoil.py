"""Whatever happens on the way, what a page shows is what is stored.

Hypothesis draws what happens: to the commits and leases of workers, to events between the processes, to
sockets and their readers, to the tree of messages. After each step no page shows what is not stored, and none has
anything taken back; whenever it is quiet each shows exactly what is stored, at once if nothing was lost and else by
asking.
"""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conversations import actions, consumer, events, frames, live_html, queue
from conversations.models import Generation
from conversations.turns import Ending
from tests import factories
from tests.reducer import Frame, reducer
from tests.tabs import Page, loop
from tests.turmoil import ARRIVES, FAILS, IN_DOUBT, LATE, LOST, TWICE, Pieces, Stage, Turmoil
from tests.web import session_of

pytestmark = pytest.mark.django_db(transaction=True)

EXAMPLES = 15
FEWEST, MOST = 10, 30  # steps of an example
MOST_PAGES = 4
UNHEARD = 12  # of a feed, instead of 1,000

CHARACTERS = [
    "a",
    " ",
    "\n",
    "e\u0301",
    "😀",
    "👩\u200d🚀",
    "\U0001f1e9\U0001f1ea",
    "שלום",
    "\u202e",
    "\u2028",
    "한",
    "\x7f",
    "*",
]
words = st.lists(st.sampled_from(CHARACTERS), min_size=1, max_size=4).map("".join)
pieces = st.lists(st.tuples(st.sampled_from([0, 0, 1]), words), min_size=1, max_size=3)
fates = st.sampled_from([ARRIVES, ARRIVES, TWICE, LOST, LATE])
commits = st.sampled_from(["", "", FAILS, IN_DOUBT])
endings = st.sampled_from(
    [
        Ending(Generation.Status.DONE, finish_reason="stop"),
        Ending(Generation.Status.DONE, finish_reason="length"),
        Ending(Generation.Status.FAILED, error={"code": "x", "detail": "It failed.", "retryable": True}),
    ]
)
which = st.integers(0, 11)


class Steps:
    """What may happen; a step that needs an answer under way begins one."""

    def __init__(self, it: Turmoil) -> None:
        self.it = it
        it.open_page(html=False)

    def page(self, number: int, connected: bool = True, reading: bool = False) -> Page | None:
        fit = [page for page in self.it.pages if (page.socket is not None) == connected and page.reads >= reading]
        return fit[number % len(fit)] if fit else None

    # To pages.

    def a_page_is_opened(self, html: bool) -> None:
        if len(self.it.pages) < MOST_PAGES:
            self.it.open_page(html)

    def a_socket_goes_away(self, number: int, noticed: bool) -> None:
        if page := self.page(number):
            self.it.disconnect(page, noticed)

    def a_page_comes_back(self, number: int) -> None:
        if page := self.page(number, connected=False):
            self.it.connect(page)

    def a_page_stops_reading(self, number: int) -> None:
        if page := self.page(number, reading=True):
            self.it.let_read(page, False)

    def a_page_reads_on(self, number: int) -> None:
        if page := self.page(number):
            self.it.let_read(page, True)

    def a_page_pings(self, number: int) -> None:
        if (page := self.page(number, reading=True)) and page.loaded:
            self.it.ping(page)

    def it_is_written_while_a_page_comes_back(
        self, number: int, pieces: Pieces, before: bool, ending: Ending | None
    ) -> None:
        run = self.it.begin()

        def write() -> None:
            run.write(pieces)
            if ending:
                self.it.finish(ending)

        if page := self.page(number):
            self.it.disconnect(page, noticed=True)
            self.it.connect_while(page, *((write, _nothing) if before else (_nothing, write)))
            self.it.settle()  # nothing may be missing that only asking finds

    # To the channel layer.

    def what_is_late_arrives(self) -> None:
        self.it.layer.release()

    def it_is_quiet_for_a_moment(self) -> None:
        self.it.settle()

    # By people.

    def something_is_said(self, text: str, fate: str, number: int | None) -> None:
        if self.it.live:
            return
        self.it.layer.fate = fate
        page = None if number is None else self.page(number, reading=True)
        if page and page.loaded:
            self.it.send_from(page, text)
        else:
            self.it.send(text)

    def it_is_said_otherwise(self, number: int, fate: str) -> None:
        self._at_a_turn(number, fate, lambda turn: self.it.ask(actions.edit, turn[0]["id"], uuid.uuid4(), "Otherwise"))

    def it_is_answered_otherwise(self, number: int, fate: str) -> None:
        self._at_a_turn(number, fate, lambda turn: self.it.ask(actions.regenerate, turn[1]["id"], uuid.uuid4()))

    def it_is_gone_on_with(self, fate: str) -> None:
        self._at_a_turn(
            -1, fate, lambda turn: self.it.ask(actions.continue_answer, turn[1]["generation"]["id"], uuid.uuid4())
        )

    def another_version_is_shown(self, number: int, fate: str) -> None:
        def show(turn: list[Frame]) -> None:
            versions = max((message["versions"] for message in turn), key=len)
            actions.show_version(self.it.stage.person, versions[number % len(versions)])

        self._at_a_turn(number, fate, show)

    def it_is_stopped(self, fate: str) -> None:
        if self.it.live:
            self.it.layer.fate = fate
            self.it.stop()

    # By workers.

    def a_prompt_is_read(self, fate: str) -> None:
        claim = self.it.begin().claim
        self.it.layer.fate = fate
        progress = {"processed": 1, "total": 2, "cache": 0}
        events.publish(claim.conversation, frames.prefill(claim.conversation, claim.generation, progress, None, None))

    def it_is_written(self, pieces: Pieces, fate: str, commit: str) -> None:
        run = self.it.begin()
        self.it.layer.fate = fate
        run.write(pieces, commit)

    def more_is_written_than_is_kept_for_a_slow_reader(self, text: str) -> None:
        self.it.begin().write([(number % 2, text) for number in range(UNHEARD + 4)])

    def it_is_taken_over(self, pieces: Pieces) -> None:
        paused = self.it.begin()
        self.it.take_over()
        paused.write(pieces)  # it goes on, and knows nothing

    def its_slot_is_lost(self, fate: str) -> None:
        self.it.begin()
        self.it.layer.fate = fate
        self.it.lose_slot()

    def it_ends(self, ending: Ending, fate: str) -> None:
        self.it.begin()
        self.it.layer.fate = fate
        self.it.finish(ending)

    def _at_a_turn(self, number: int, fate: str, do: Callable[[list[Frame]], None]) -> None:
        if not self.it.live and (path := self.it.path()):
            self.it.layer.fate = fate
            at = number % (len(path) // 2) * 2
            do(path[at : at + 2])


def step(name: str, **about: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    return st.tuples(st.just(name), st.fixed_dictionaries(about))


write = step("it_is_written", pieces=pieces, fate=fates, commit=commits)
steps = st.one_of(
    write,
    write,
    write,
    step("a_page_is_opened", html=st.booleans()),
    step("a_socket_goes_away", number=which, noticed=st.booleans()),
    step("a_page_comes_back", number=which),
    step("a_page_stops_reading", number=which),
    step("a_page_reads_on", number=which),
    step("a_page_pings", number=which),
    step(
        "it_is_written_while_a_page_comes_back",
        number=which, pieces=pieces, before=st.booleans(), ending=st.none() | endings,
    ),
    step("what_is_late_arrives"),
    step("it_is_quiet_for_a_moment"),
    step("something_is_said", text=words.filter(str.strip), fate=fates, number=st.none() | which),
    step("it_is_said_otherwise", number=which, fate=fates),
    step("it_is_answered_otherwise", number=which, fate=fates),
    step("it_is_gone_on_with", fate=fates),
    step("another_version_is_shown", number=which, fate=fates),
    step("it_is_stopped", fate=fates),
    step("a_prompt_is_read", fate=fates),
    step("more_is_written_than_is_kept_for_a_slow_reader", text=words),
    step("it_is_taken_over", pieces=pieces),
    step("its_slot_is_lost", fate=fates),
    step("it_ends", ending=endings, fate=fates),
    step("it_ends", ending=endings, fate=fates),
)  # fmt: skip


def _nothing() -> None: ...


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(consumer, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(events, "MOST_UNHEARD", UNHEARD)
    monkeypatch.setattr(live_html, "SHORTEST", 0.02)
    monkeypatch.setattr(queue, "PAUSE_SECONDS", 0)
    with loop() as its_loop, reducer() as its_reducer:
        yield Stage(its_loop, its_reducer, factories.person().pk, session_of("alice"), factories.server(slots=8))


def test_what_every_page_shows_is_what_is_stored(stage: Stage) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None)
    @given(st.lists(steps, min_size=FEWEST, max_size=MOST))
    def whatever_happens(happens: list[tuple[str, dict[str, Any]]]) -> None:
        with Turmoil(stage) as it:
            drawn = Steps(it)
            for name, about in happens:
                getattr(drawn, name)(**about)
                it.layer.fate = ARRIVES
                it.check()
            it.end()

    whatever_happens()
