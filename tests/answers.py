"""What a test sees of an answer while workers write it: snapshots, as any client could read them."""

from conversations import history
from conversations.claims import Claim
from conversations.history import GenerationView
from conversations.models import Generation
from conversations.sending import Turn
from tests.eventually import eventually


def look(turn: Turn | Claim) -> GenerationView:
    key = turn.generation if isinstance(turn, Claim) else turn.generation.pk
    return history.generation(Generation.objects.get(pk=key))


def ended(turn: Turn, timeout: float = 20) -> GenerationView:
    """The generation once it has ended."""
    # Not `look`, whose place in the queue and estimate would be half a core fifty times a second.
    status = Generation.objects.filter(pk=turn.generation.pk).values_list("status", flat=True)
    eventually(lambda: status.get() not in Generation.LIVE, timeout, what="the answer to end")
    return look(turn)


def written(turn: Turn, characters: int = 20, timeout: float = 20) -> GenerationView:
    """The generation once so much of its text can be seen and it still runs."""

    def far_enough() -> GenerationView | None:
        view = look(turn)
        assert view.live, f"it ended before: {view}"
        return view if len(view.text) >= characters else None

    found = eventually(far_enough, timeout, what=f"{characters} characters of the answer")
    assert found
    return found


class Watched:
    """Polls an answer to its end and insists that nothing shown is ever taken back."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self._last = look(turn)

    def until_ended(self, timeout: float = 30) -> GenerationView:
        return eventually(self._step, timeout, what="the answer to end")  # type: ignore[return-value]

    def _step(self) -> GenerationView | None:
        view = look(self.turn)
        if not (view.text.startswith(self._last.text) and view.seq >= self._last.seq):
            raise RuntimeError(f"taken back: {self._last} became {view}")
        self._last = view
        return None if view.live else view
