"""A conversation as Markdown, to read: the path that is shown, without reasoning."""

from datetime import UTC

from conversations import history
from conversations.history import MessageView
from conversations.models import Conversation, Message
from conversations.titles import NAMELESS

SPEAKERS = {Message.Role.USER.value: "You", Message.Role.ASSISTANT.value: "Answer"}


def of(where: Conversation) -> str:
    """Ends with a line break."""
    parts = [f"# {' '.join(where.title.split()) or NAMELESS}"]
    if where.system_prompt:
        parts.append(f"> **System prompt**\n>\n{_quoted(where.system_prompt)}")
    parts += [_message(view) for view in history.path(where.pk, where.leaf_id)]
    return "\n\n".join(parts) + "\n"


def _message(view: MessageView) -> str:
    at = view.created_at.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    notes = [_quoted(note) for note in view.notes]
    return "\n\n".join([f"## {SPEAKERS[view.role]}, {at}", *notes, view.text.strip("\n")])


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines())
