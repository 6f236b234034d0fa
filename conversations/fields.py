"""Strict fields: what comes in is of the type it should be, or refused with a sentence; nothing is guessed.

Used for REST bodies and websocket frames alike.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from conversations import parameters, text
from conversations.json_text import kind


@extend_schema_field(OpenApiTypes.STR)
class Text(serializers.Field):  # type: ignore[type-arg]
    """A string, cleaned of what cannot be stored and otherwise unchanged; `longest` in code points."""

    def __init__(self, longest: int | None = None, **options: Any) -> None:
        self.longest = longest
        super().__init__(**options)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            raise serializers.ValidationError(f"This must be a string, not {kind(data)}.")
        words = text.clean(data)
        if self.longest is not None and len(words) > self.longest:
            raise serializers.ValidationError(f"This has {len(words):,} characters; {self.longest:,} are allowed.")
        return words

    def to_representation(self, value: Any) -> Any:
        return value


@extend_schema_field(OpenApiTypes.BOOL)
class Flag(serializers.Field):  # type: ignore[type-arg]
    """true or false, in JSON's words."""

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            raise serializers.ValidationError(f"This must be true or false, not {kind(data)}.")
        return data

    def to_representation(self, value: Any) -> Any:
        return value


@extend_schema_field(OpenApiTypes.UUID)
class Id(serializers.Field):  # type: ignore[type-arg]
    """A UUID as a string with hyphens or without."""

    def to_internal_value(self, data: Any) -> UUID:
        try:
            return UUID(data) if isinstance(data, str) else _no_uuid(data)
        except ValueError as error:
            raise serializers.ValidationError(
                "This must be a UUID like 0190b2c0-7a1e-7c3d-8f00-0000000000ff."
            ) from error

    def to_representation(self, value: Any) -> Any:
        return str(value)


@extend_schema_field(parameters.SCHEMA)
class Params(serializers.Field):  # type: ignore[type-arg]
    """How answers are made, by `conversations.parameters`; None in it is back to the server's default."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if not isinstance(data, dict):
            raise serializers.ValidationError(f"This must be an object, not {kind(data)}.")
        good, wrong = parameters.read(data)
        if wrong:
            raise serializers.ValidationError({name: [sentence] for name, sentence in wrong.items()})
        return good

    def to_representation(self, value: Any) -> Any:
        return value


class Strict(serializers.Serializer):  # type: ignore[type-arg]
    """Refuses fields it does not know, by name: a misspelt field must not be lost in silence."""

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, Mapping):
            raise serializers.ValidationError({"non_field_errors": [f"Send a JSON object, not {kind(data)}."]})
        if unknown := sorted(set(data) - set(self.fields)):
            known = ", ".join(self.fields)
            raise serializers.ValidationError(
                {name: [f"There is no such field; there are: {known}."] for name in unknown}
            )
        return super().to_internal_value(data)


def _no_uuid(data: Any) -> UUID:
    raise ValueError(kind(data))
