from collections.abc import Mapping
from typing import IO, Any

from rest_framework.parsers import BaseParser

from conversations import json_text


class JsonBody(BaseParser):
    """DRF's own breaks on deep nesting. Raises Malformed."""

    media_type = "application/json"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        return json_text.read(stream.read())


class Unread(BaseParser):
    """For a view that reads a long body itself: looking for a CSRF token among its fields must not take it all in."""

    media_type = "*/*"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        return {}
