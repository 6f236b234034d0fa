"""What Postgres has and a client may lack."""

import json
from uuid import UUID

from conversations import access, errors, frames, history, rendered
from conversations.frames import Frame

MOST_BYTES = 900_000  # of messages in a snapshot: many websocket clients take frames up to 1 MiB only
LAST_TURN = 2  # a question and its answer


def snapshot(person: int, conversation: UUID, html: bool = False) -> Frame:
    """All of a conversation that a client shows, its answers as HTML too if asked for. Raises NotFound."""
    row = access.conversation(person, conversation)
    messages, earlier = history.snapshot(row)
    shown = frames.snapshot(row, messages, earlier)
    if html:
        shown["messages"] = frames.with_html(shown["messages"], rendered.of_messages(messages))
    fitting = _newest_that_fit(shown["messages"])
    return {**shown, "messages": fitting, "earlier": earlier or len(fitting) < len(messages)}


def _newest_that_fit(messages: list[Frame]) -> list[Frame]:
    """As many of the newest as fit a frame, the last turn in any case; a client reads the others by page."""
    size, kept = 0, 0
    for message in reversed(messages):
        size += len(json.dumps(message, ensure_ascii=False).encode())
        if size > MOST_BYTES and kept >= LAST_TURN:
            break
        kept += 1
    return messages[len(messages) - kept :]


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
