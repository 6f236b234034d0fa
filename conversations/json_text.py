"""JSON as clients send it, in bodies and frames: read strictly, refused with a sentence."""

import json
from typing import Any

from conversations import errors

KINDS = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}


def read(words: bytes | str) -> Any:
    """The value. Raises Malformed: no UTF-8, no JSON, NaN, or nested deeper than can be read."""
    try:
        words = words.decode() if isinstance(words, bytes) else words
    except UnicodeDecodeError as error:
        raise errors.Malformed("malformed_utf8", "This is not valid UTF-8.") from error
    try:
        return json.loads(words, parse_constant=_no_number)
    except RecursionError as error:
        raise errors.Malformed("malformed_json", "This is not valid JSON for us: it is nested too deep.") from error
    except ValueError as error:
        raise errors.Malformed("malformed_json", f"This is not valid JSON: {error}.") from error


def kind(value: Any) -> str:
    """What a JSON value is, in words."""
    return KINDS.get(type(value), "null")


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number in JSON")
