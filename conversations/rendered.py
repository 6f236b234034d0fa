"""Answers as HTML: made once however many look on; a finished one is stored with its message.

Stored is what one `rendering.VERSION` made of one text: a newer renderer renders again, and whatever changes a
message's text must set its `html_version` to 0.
"""

import functools
import threading
from collections.abc import Iterable
from uuid import UUID

from conversations import rendering
from conversations.history import MessageView
from conversations.models import Message

MOST_KEPT = 64  # texts; those that several tabs of one conversation ask for within moments

_one_at_a_time = threading.Lock()  # what two tabs ask for at once is made once; in parallel nothing would be faster


def live(text: str) -> list[str]:
    """The blocks of an answer that is still being written."""
    with _one_at_a_time:
        return list(_made(text, final=False))


def finished(message: UUID, text: str) -> list[str]:
    """The blocks of a message whose text is `text` for good, from storage or else stored now."""
    stored = _stored([message]).get(message)
    return _store(message, text) if stored is None else stored


def of_messages(views: Iterable[MessageView]) -> dict[UUID, list[str]]:
    """The blocks of each answer among `views`, by its id; what people write is shown as it is."""
    answers = [view for view in views if view.role == Message.Role.ASSISTANT]
    stored = _stored([view.id for view in answers])
    return {view.id: _blocks(view, stored) for view in answers}


def _blocks(view: MessageView, stored: dict[UUID, list[str]]) -> list[str]:
    if view.generation and view.generation.live:
        return live(view.text)
    return stored[view.id] if view.id in stored else _store(view.id, view.text)


def _stored(messages: list[UUID]) -> dict[UUID, list[str]]:
    found = Message.objects.filter(pk__in=messages, html_version=rendering.VERSION)
    return {id_: blocks for id_, blocks in found.values_list("pk", "html") if blocks is not None}


def _store(message: UUID, text: str) -> list[str]:
    with _one_at_a_time:
        blocks = list(_made(text, final=True))
    # Not if the text has changed since it was read: this is the HTML of another one then.
    Message.objects.filter(pk=message, text=text).update(html=blocks, html_version=rendering.VERSION)
    return blocks


@functools.lru_cache(MOST_KEPT)
def _made(text: str, final: bool) -> tuple[str, ...]:
    return tuple(rendering.render(text, final))
