"""The models that answer, as people are told of them: on the page and under `/api/v1/models/`."""

from dataclasses import dataclass

from django.db.models import Count

from chatbackend.embedded.llama_server import BUNDLED_MODEL
from conversations import parameters
from conversations.models import Waiting
from slots import capacity


@dataclass(frozen=True, slots=True)
class Served:
    """One model; figures of a moment, over all its servers."""

    name: str
    demo: bool  # the small one that comes with `make up`: good for trying things out, wrong in what it says
    context: int  # model tokens that a conversation can have
    places: int  # conversations that are answered at once
    busy: int  # of the places
    waiting: int  # people's messages before the next one
    reason: str | None  # a sentence while it cannot answer
    thinking: list[str]  # what the parameter of this name may be

    @property
    def usable(self) -> bool:
        return self.reason is None

    @property
    def free(self) -> int:
        """Places for whoever comes now; one that is kept warm for somebody is free too."""
        return self.places - self.busy

    @property
    def words(self) -> int:
        """The context in English words, roughly."""
        return self.context * 3 // 400 * 100


def served() -> list[Served]:
    """Every model that a server in use has, whether it answers at the moment or not, by name. Two queries."""
    queued = Waiting.objects.values_list("model").annotate(Count("pk")).order_by()
    waiting: dict[str, int] = dict(queued)
    for_any = waiting.get("", 0)
    return [
        Served(
            name=one.model,
            demo=one.model == BUNDLED_MODEL,
            context=one.context,
            places=one.places,
            busy=one.busy,
            waiting=waiting.get(one.model, 0) + for_any,
            reason=one.why_none,
            thinking=parameters.thinking_of(one.switches),
        )
        for one in capacity.capacities()
    ]
