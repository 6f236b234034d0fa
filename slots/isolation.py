"""The alarm: a server reused more of a cache than can have been the conversation's own.

Nothing of such an answer is stored or shown. The server is out of service until an administrator has it probed again,
or another process answers there.
"""

from django.db.models.functions import Now

from slots import leases
from slots.models import Server

CURE = (
    "Restart it with --cache-ram 0 -sps 0 --cache-reuse 0 and an --api-key that only this site has. A new process is "
    "tried by itself; the same one is tried again when an administrator wishes it."
)


class IsolationBroken(Exception):
    """More of the cache was reused than `bound` tokens: it holds what is not this conversation's."""

    def __init__(self, id_slot: int, cache: int, bound: int) -> None:
        super().__init__(
            f"Isolation is broken: slot {id_slot} reused {cache:,} tokens where {bound:,} at most were the "
            "conversation's own. Nothing of that answer was shown, and nothing more is asked there."
        )


def take_out_of_service(server: int, broken: IsolationBroken) -> list[int]:
    """Every lease there ends and none is given; the fences that counted until now.

    Call in a transaction, before any slot of it is locked. A server that is retired stays so.
    """
    Server.objects.select_for_update(of=("self",), no_key=True).get(pk=server)
    out = {"state": Server.State.UNUSABLE, "grade": Server.Grade.UNUSABLE, "costs": str(broken), "cure": CURE}
    Server.objects.filter(pk=server).exclude(state=Server.State.RETIRED).update(**out, graded_at=Now())
    return leases.take_out(server)
