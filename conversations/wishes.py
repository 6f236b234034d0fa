"""What a person asks for, as it is told from any other wish: so that a repeated request makes one turn."""

import hashlib
import json
import uuid
from dataclasses import dataclass

from conversations import errors, text
from conversations.models import Generation


@dataclass(frozen=True, slots=True)
class Wish:
    """To begin a turn; the same `client_id` with another `digest` is another wish, and refused."""

    owner: int
    conversation: uuid.UUID
    client_id: uuid.UUID
    kind: Generation.Kind
    digest: bytes


def wish(owner: int, conversation: uuid.UUID, client_id: uuid.UUID, kind: Generation.Kind, *said: str) -> Wish:
    """One whose content is `said`."""
    digest = hashlib.sha256(json.dumps([kind, str(conversation), *said]).encode()).digest()
    return Wish(owner, conversation, client_id, kind, digest)


def checked(words: str) -> str:
    """A message as it is stored. Raises TextEmpty, TextTooLong."""
    words = text.clean(words)
    if not words.strip():
        raise errors.TextEmpty
    if len(words) > text.LONGEST_MESSAGE:
        raise errors.TextTooLong(f"The message has {len(words):,} characters; {text.LONGEST_MESSAGE:,} are allowed.")
    return words
