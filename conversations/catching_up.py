"""What Postgres has and a client may lack."""

import json
from uuid import UUID

from conversations import access, errors, frames, history, places, rendered
from conversations.following import Silent
from conversations.frames import Frame
from conversations.models import Generation

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


def news(person: int, silent: Silent) -> list[Frame] | None:
    """What a client lacks of a live generation; None when only a snapshot can tell. Raises NotFound."""
    found = history.progress(person, [silent.generation])
    if not found:
        raise errors.NotFound
    now = found[0]
    if now.live and now.seq == silent.seq:
        return _place(now, silent)
    after = history.chunks_after(now.id, silent.seq)
    whole = [chunk.seq for chunk in after] == list(range(silent.seq + 1, silent.seq + 1 + len(after)))
    if not (now.live and after and whole):
        return None
    return [frames.delta(now.conversation, now.id, chunk.seq, chunk.part, chunk.start, chunk.text) for chunk in after]


def _place(now: history.Progress, told: Silent) -> list[Frame] | None:
    """A place moves, and a server comes or goes, also while no worker is there to say so."""
    if now.status != Generation.Status.QUEUED:
        return None if told.waits else []  # it has begun, and shows nothing of it yet
    place = places.board.look().get(now.id)
    if place is None:
        return []  # it has just come, or is about to begin: the next look tells
    frame = frames.placed(place)
    news = (frame["place"], frame["reason"], frame["estimate"]) != (told.place, told.reason, told.estimate)
    return [frame] if news else []
