"""What an administrator orders of a server. Each order is one filtered update: an old page rolls nothing back."""

from django.db import transaction
from django.db.models import Case, TextField, Value, When

from slots import leases, probing
from slots.models import Server, Slot

State = Server.State


# Of a process that was not tried yet, or that was found unusable while it drained.
_AFTER_A_DRAIN = (
    When(grade="", then=Value(State.PROBING.value)),
    When(grade=Server.Grade.UNUSABLE, then=Value(State.UNUSABLE.value)),
)


class Refused(Exception):
    """The order makes no sense for this server as it is now; the sentence says why and what would."""


def drain(server: Server) -> None:
    """Give no new leases there; what runs ends in peace. Raises Refused."""
    if not _moved(server, (State.READY, State.PROBING), State.DRAINING):
        _refuse(server, f"{server.url} gives no leases as it is: there is nothing to drain.")


def serve(server: Server) -> None:
    """Back into service after a drain or a retirement, and as one of the admin's own. Raises Refused."""
    draining = Server.objects.filter(pk=server.pk, state=State.DRAINING)
    if draining.update(state=Case(*_AFTER_A_DRAIN, default=Value(State.READY.value), output_field=TextField())):
        return
    back = Server.objects.filter(pk=server.pk, state=State.RETIRED)
    if not back.update(state=State.UNKNOWN, from_environment=False, trouble=""):
        _refuse(server, f"{server.url} is in service.")


def retire(server: Server) -> None:
    """Use it no more. Idle leases end now, busy ones with their answer. Raises Refused."""
    with transaction.atomic():
        leases.end_if_paused()
        ours = Server.objects.filter(pk=server.pk, from_environment=False).exclude(state=State.RETIRED)
        # Without its process: that may be added under another address now.
        if not ours.update(state=State.RETIRED, boot=None, trouble=""):
            if Server.objects.filter(pk=server.pk, from_environment=True).exists():
                _refuse(server, f"LLAMA_SERVERS lists {server.url}: take it out there and restart the workers.")
            _refuse(server, f"{server.url} is retired.")
        leases.leave_retired()


def probe_again(server: Server) -> None:
    """Try its process once more; what is kept warm there is lost. Raises Refused."""
    if not probing.again(server):
        _refuse(server, f"{server.url} is answering, or is not known yet: drain it first, and wait until it is quiet.")


def change_key(server: Server, api_key: str) -> None:
    """Raises Refused."""
    if not Server.objects.filter(pk=server.pk, from_environment=False).update(api_key=api_key):
        _refuse(server, f"LLAMA_SERVERS decides the key of {server.url}.")


def busy(server: Server) -> int:
    """How many answers are being written there."""
    return Slot.objects.filter(server=server, phase=Slot.Phase.BUSY, work=Slot.Work.TURN).count()


def _moved(server: Server, before: tuple[State, ...], after: State) -> bool:
    return Server.objects.filter(pk=server.pk, state__in=before).update(state=after) > 0


def _refuse(server: Server, sentence: str) -> None:
    raise Refused(sentence)
