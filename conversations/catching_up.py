"""What Postgres has and a client may lack."""

from uuid import UUID

from conversations import access, errors, frames, history
from conversations.frames import Frame


def snapshot(person: int, conversation: UUID) -> Frame:
    """All of a conversation that a client shows. Raises NotFound."""
    row = access.conversation(person, conversation)
    return frames.snapshot(row, *history.snapshot(row))


def missed_events(person: int, generation: UUID, seq: int) -> list[Frame] | None:
    """The events of a live generation after its event `seq`; None when only a snapshot can tell. Raises NotFound."""
    found = history.progress(person, [generation])
    if not found:
        raise errors.NotFound
    if found[0].live and found[0].seq == seq:
        return []
    after = history.chunks_after(generation, seq)
    whole = [chunk.seq for chunk in after] == list(range(seq + 1, seq + 1 + len(after)))
    if not (found[0].live and after and whole):
        return None
    where = found[0].conversation
    return [frames.delta(where, generation, chunk.seq, chunk.part, chunk.start, chunk.text) for chunk in after]
