"""How a server stands, in a colour, words, and the sentence that explains it."""

from django.utils import timezone

from slots import grades
from slots.models import Server

State = Server.State
Grade = Server.Grade


def standing(server: Server) -> tuple[str, str, str]:
    """A server's state: colour, words, and the sentence that explains it."""
    if server.state == State.RETIRED:
        return "", "Retired", "No longer used."
    if server.trouble:
        draining = server.state == State.DRAINING
        return "bad", "Draining, not usable" if draining else "Not usable", server.trouble
    if server.state == State.UNKNOWN:
        return "warn", "Not reached yet", "A worker looks once a second."
    if server.state == State.DRAINING:
        return "warn", "Draining", "Gets no new leases; what runs ends in peace."
    if server.state == State.UNUSABLE:
        return "bad", "Not usable", server.costs
    if server.state == State.PROBING:
        return (
            "warn",
            "Being tried",
            server.costs or "A worker sends it a few short requests; nobody is leased a slot yet.",
        )
    return _ready(server)


def _ready(server: Server) -> tuple[str, str, str]:
    now = timezone.now()
    verdict = grades.of(server, now)
    if verdict is None or (verdict.grade == Grade.FULL and not grades.is_shared(server, now)):
        return "good", "Ready", "Takes new conversations."
    careful = verdict.grade == Grade.ONE_AT_A_TIME or grades.is_shared(server, now)
    return "warn" if careful else "good", f"Ready, {grades.words(server, now)}", verdict.costs
