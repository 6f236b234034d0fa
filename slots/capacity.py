"""How much can be answered at once, by model: what people and the page are told of the servers."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Count, Q

from slots.models import Server, Slot

# What else than a turn is at work yields to whoever comes.
_IN_USE = Q(slots__phase=Slot.Phase.BUSY, slots__work=Slot.Work.TURN) | Q(slots__condition=Slot.Condition.STOPPING)


@dataclass(frozen=True, slots=True)
class Capacity:
    """Of one model, over all servers that have it; like `servers.why_none` what the last look at them found."""

    model: str
    context: int  # model tokens that a conversation can have: the smallest slot's
    places: int  # slots of usable servers; 0 when there is none
    busy: int  # of those: an answer is being written, or not yet known to have stopped
    why_none: str | None  # a sentence when no server of this model is usable
    switches: frozenset[str]  # what its chat template lets a request decide


def capacities() -> list[Capacity]:
    """By name; models that only retired servers had are not among them. One query."""
    known = Server.objects.exclude(state=Server.State.RETIRED).exclude(n_ctx=None).order_by("model", "url")
    counted = known.annotate(
        places=Count("slots", filter=~Q(slots__condition__in=[Slot.Condition.GONE, Slot.Condition.UNUSED])),
        in_use=Count("slots", filter=_IN_USE),
    )
    by_model: dict[str, list[tuple[Server, int, int]]] = defaultdict(list)
    for server in counted:
        by_model[server.model].append((server, server.places, server.in_use))
    return [_capacity(model, servers) for model, servers in by_model.items()]


def why_unusable(server: Server) -> str | None:
    """A sentence why this server takes no new conversations; None when it does."""
    if server.trouble:
        return server.trouble
    if server.state == Server.State.READY:
        return None
    if server.state == Server.State.DRAINING:
        return f"{server.url} is being taken out of service."
    if server.state == Server.State.UNUSABLE:
        return server.costs
    if server.state == Server.State.PROBING:
        return server.costs or f"{server.url} is being tried out: that takes a few seconds."
    return f"{server.url} has not been reached yet."


def grades_in_use() -> str:
    """How the usable servers are used, for whoever runs them: “1 full, 2 one at a time”; empty when none is usable."""
    counted = Counter(server.grade for server in Server.objects.filter(state=Server.State.READY, trouble=""))
    return ", ".join(f"{counted[grade]} {Server.Grade(grade).label.lower()}" for grade in sorted(counted))


def out_of_service() -> str:
    """Why servers that were tried are not used, for whoever runs them; empty when all are. Each names itself."""
    out = Server.objects.filter(state=Server.State.UNUSABLE).order_by("url")
    return " ".join(f"{server.url} is out of service: {server.costs}" for server in out)


def _capacity(model: str, servers: Sequence[tuple[Server, int, int]]) -> Capacity:
    usable = [one for one in servers if why_unusable(one[0]) is None]
    reasons = [why_unusable(server) or "" for server, _, _ in servers]
    return Capacity(
        model=model,
        context=min(server.n_ctx or 0 for server, _, _ in usable or servers),
        places=sum(places for _, places, _ in usable),
        busy=sum(in_use for _, _, in_use in usable),
        why_none=None if usable else " ".join(reasons),
        switches=frozenset(name for server, _, _ in servers for name in server.switches),
    )
