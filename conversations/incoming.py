"""Frames from clients: read, checked, and refused with a sentence that says what would be right."""

from dataclasses import dataclass, field
from typing import Any

from rest_framework import serializers

from conversations import errors, json_text
from conversations.api.errors import invalid
from conversations.api.serializers import SendInput
from conversations.fields import Flag, Id, Strict, Text
from conversations.json_text import kind

LONGEST_FRAME = 1024 * 1024  # bytes
MOST_KNOWN = 200
LONGEST_ID = 100


class Known(serializers.Field):  # type: ignore[type-arg]
    """`{generation: seq}`: what the client has."""

    def to_internal_value(self, data: Any) -> dict[Any, int]:
        if not isinstance(data, dict) or not all(isinstance(seq, int) for seq in data.values()):
            raise serializers.ValidationError('This must be an object of numbers by generation id, like {"…": 12}.')
        if len(data) > MOST_KNOWN:
            raise serializers.ValidationError(f"This names {len(data)} generations; {MOST_KNOWN} are allowed.")
        return {Id().to_internal_value(generation): seq for generation, seq in data.items()}


class Auth(Strict):
    token = Text(longest=200)


class InConversation(Strict):
    conversation = Id()


class Subscribe(InConversation):
    html = Flag(required=False)


class Send(SendInput):
    conversation = Id()


class OfGeneration(Strict):
    generation = Id()


class Ping(Strict):
    known = Known(required=False)


SHAPES: dict[str, type[Strict]] = {
    "auth": Auth,
    "subscribe": Subscribe,
    "unsubscribe": InConversation,
    "send": Send,
    "cancel": OfGeneration,
    "typing": InConversation,
    "ping": Ping,
}


@dataclass(slots=True)
class Incoming:
    """A frame, as far as it could be read; `about` is what an answer repeats so that the client finds its question."""

    type: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    _rest: dict[str, Any] = field(default_factory=dict)

    def read(self, words: str | None) -> None:
        """Fill in from the text of a frame (None: it was binary), up to its `type`. Raises Invalid."""
        if words is None:
            raise errors.Malformed("binary_frame", "Send text frames: this one was binary.")
        self._rest = _object(words)
        for name, key in (("id", "re"), ("client_id", "client_id"), ("generation", "generation")):
            if isinstance(value := self._rest.get(name), str | int) and len(str(value)) <= LONGEST_ID:
                self.about[key] = value
        self._rest.pop("id", None)
        type_ = self._rest.pop("type", None)
        if not isinstance(type_, str) or type_ not in SHAPES:
            given = f"not {type_[:40]!r}" if isinstance(type_, str) else "a string"
            raise errors.Malformed("unknown_type", f"type must be one of {', '.join(SHAPES)}, {given}.")
        self.type = type_

    def check(self) -> None:
        """Check the fields. Raises Invalid."""
        shape = SHAPES[self.type](data=self._rest)
        try:
            shape.is_valid(raise_exception=True)
        except serializers.ValidationError as error:
            raise invalid(error) from error
        self.fields = shape.validated_data


def _object(words: str) -> dict[str, Any]:
    raw = words.encode("utf-8", "surrogateescape")  # the web server lets bytes that are no UTF-8 through like this
    if len(raw) > LONGEST_FRAME:
        raise errors.Malformed("frame_too_large", f"A frame may have {LONGEST_FRAME:,} bytes; this has {len(raw):,}.")
    found = json_text.read(raw)
    if not isinstance(found, dict):
        raise errors.Malformed("malformed_json", f"A frame must be a JSON object, not {kind(found)}.")
    return found
