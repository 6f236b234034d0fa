"""A conversation as a file has it, before it is stored; whatever the file, this is what becomes of it."""

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any
from uuid import UUID

from conversations.transfer.records import refused

MOST_NOTES = 20


@dataclass(frozen=True, slots=True)
class Run:
    """A generation that ended elsewhere."""

    kind: str
    model: str
    status: str
    queued_at: datetime
    started_at: datetime | None
    finished_at: datetime
    finish_reason: str = ""
    params: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    timings: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class DraftMessage:
    """`key` and `parent` are the file's own names for messages."""

    key: str
    parent: str | None
    role: str
    text: str
    reasoning: str
    created_at: datetime
    runs: tuple[Run, ...] = ()
    imported: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """`messages` are in the order in which they were written; `source` is its id on this site, if it is from here."""

    place: str
    title: str
    created_at: datetime
    updated_at: datetime
    leaf: str | None
    messages: list[DraftMessage]
    model: str = ""
    system_prompt: str = ""
    params: dict[str, Any] = field(default_factory=dict)
    pinned: bool = False
    archived: bool = False
    imported: dict[str, Any] | None = None
    source: UUID | None = None

    def digest(self) -> bytes:
        """The same for the same content, whatever its ids are."""
        number = {message.key: at for at, message in enumerate(self.messages)}
        left_out = {"messages": None, "place": "", "source": "", "leaf": number.get(self.leaf or "")}
        about = _fields(self) | left_out
        digest = hashlib.blake2b(_json(about), digest_size=20)
        for one in self.messages:  # one by one, as they may bring long attachments
            digest.update(_json(_fields(one) | {"key": "", "parent": number.get(one.parent or "")}))
        return digest.digest()


@dataclass(frozen=True, slots=True)
class PresetDraft:
    """What a person begins conversations with."""

    name: str
    model: str
    system_prompt: str
    params: dict[str, Any]


def by_key(messages: Iterable[DraftMessage], place: str) -> dict[str, DraftMessage]:
    """Raises ImportRefused where two have the same id."""
    found: dict[str, DraftMessage] = {}
    for message in messages:
        if message.key in found:
            raise refused(place, f"two messages have the id '{message.key[:40]}'")
        found[message.key] = message
    return found


def parents_first(draft: Draft) -> Iterator[DraftMessage]:
    """Each after its parent. Raises ImportRefused where messages follow each other in a circle."""
    children: dict[str | None, list[DraftMessage]] = {}
    for message in draft.messages:
        children.setdefault(message.parent, []).append(message)
    count, waiting = 0, deque(children.get(None, []))
    while waiting:
        message = waiting.popleft()
        count += 1
        yield message
        waiting.extend(children.get(message.key, []))
    if count < len(draft.messages):
        raise refused(draft.place, "some messages follow each other in a circle, so there is no first one")


def notes(imported: Mapping[str, Any] | None) -> list[str]:
    """What a reader of the message is told of what cannot be shown."""
    if not imported:
        return []
    role = {"tool": "The result of a tool that the model called.", "system": "A system prompt of another branch."}
    said = [role[imported["role"]]] if imported.get("role") in role else []
    said += [f"The model called the tool “{name}”." for name in _tools(imported.get("toolCalls"))]
    said += [f"Attachment “{name}”: kept, and not read by the model here." for name in _names(imported.get("extra"))]
    return said[:MOST_NOTES]


def _tools(calls: Any) -> Iterator[str]:
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        yield _short(function.get("name") if isinstance(function, dict) else None)


def _names(attachments: Any) -> Iterator[str]:
    for one in attachments if isinstance(attachments, list) else []:
        yield _short((one.get("name") or one.get("type")) if isinstance(one, dict) else None)


def _short(name: Any) -> str:
    return name[:100] if isinstance(name, str) and name else "?"


def _json(value: Any) -> bytes:
    return json.dumps(value, default=_plain, sort_keys=True).encode()


def _plain(value: Any) -> Any:
    return _fields(value) if isinstance(value, Run) else str(value)


def _fields(record: Draft | DraftMessage | Run) -> dict[str, Any]:
    """As `asdict`, which copies all that is in them, in half of the time that a file takes."""
    return {one.name: getattr(record, one.name) for one in fields(record)}
