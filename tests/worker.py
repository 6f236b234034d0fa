"""A worker played by a test: it commits text and ends, then publishes, in the order a real one keeps."""

from conversations import events, frames, history, turns
from conversations.claims import Claim
from conversations.models import Generation
from slots.models import Server
from tests import factories


def claimed() -> Claim:
    """The first waiting generation, taken by this worker on the one server there is."""
    claim = turns.claim(factories.WORKER, [Server.objects.get().pk])
    assert claim
    return claim


def publish(claim: Claim, *pieces: str) -> None:
    """Commit pieces of an answer, then publish them."""
    before = look(claim).seq
    factories.wrote(claim, *pieces)
    for chunk in history.chunks_after(claim.generation, before):
        events.publish(
            claim.conversation,
            frames.delta(claim.conversation, claim.generation, chunk.seq, chunk.part, chunk.start, chunk.text),
        )


def finish(claim: Claim) -> None:
    """Commit the end, then publish it."""
    turns.finish(claim, turns.Ending(Generation.Status.DONE, finish_reason="stop"))
    events.publish(claim.conversation, frames.ended(look(claim)))


def look(claim: Claim) -> history.GenerationView:
    return history.generation(Generation.objects.get(pk=claim.generation))
