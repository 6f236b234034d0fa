"""JSON objects of a file, read field by field: whatever is wrong is refused with its place in the file."""

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from conversations import errors, text
from conversations.json_text import kind

LONGEST = 1_000_000  # code points of one text: five times what can be sent in one message
LONGEST_WORD = 1000  # of a name: a model, which may be a path, or why an answer ended
DEEPEST = 50  # values in values
LARGEST = 2**53  # of numbers, as far as JavaScript counts
MOST_COUNTED = 10**9  # model tokens
NOTHING = "Nothing was imported."

_REQUIRED = object()


def refused(place: str, sentence: str) -> errors.ImportRefused:
    """`sentence` goes on from `place`, without a full stop."""
    return errors.ImportRefused(f"{f'{place}: ' if place else ''}{sentence}. {NOTHING}", place=place)


class Record:
    """The object `value`, which is `place` for people. Fields that were asked for are taken out of it."""

    def __init__(self, value: Any, place: str) -> None:
        self.place = place
        self.rest: dict[str, Any] = dict(value) if isinstance(value, dict) else self._wrong(value)

    def take(self, name: str, default: Any = _REQUIRED) -> Any:
        """Whatever it is, as Postgres can store it."""
        if name not in self.rest:
            if default is _REQUIRED:
                raise refused(self.place, f"`{name}` is missing")
            return default
        return clean(self.rest.pop(name), self._within(name))

    def string(self, name: str, default: Any = _REQUIRED, longest: int = LONGEST) -> str:
        value = self.take(name, default)
        if not isinstance(value, str):
            raise self.problem(name, value, "a string")
        if len(value) > longest:
            raise refused(self.place, f"`{name}` has {len(value):,} characters, {longest:,} are allowed")
        return value

    def flag(self, name: str) -> bool:
        value = self.take(name)
        if not isinstance(value, bool):
            raise self.problem(name, value, "true or false")
        return value

    def choice(self, name: str, choices: Collection[str]) -> str:
        value = self.string(name)
        if value not in choices:
            raise self.problem(name, value, f"one of {', '.join(choices)}")
        return value

    def list(self, name: str, default: Any = _REQUIRED) -> list[Any]:
        value = self.rest.pop(name, default)
        if value is _REQUIRED:
            raise refused(self.place, f"`{name}` is missing")
        if not isinstance(value, list):
            raise self.problem(name, value, "a list")
        return value

    def object(self, name: str) -> dict[str, Any] | None:
        """None for null."""
        value = self.take(name)
        if value is not None and not isinstance(value, dict):
            raise self.problem(name, value, "an object or null")
        return value

    def time(self, name: str) -> datetime:
        if (at := self.time_or_null(name)) is None:
            raise self.problem(name, None, "a time like 2026-11-30T12:00:00Z")
        return at

    def time_or_null(self, name: str) -> datetime | None:
        value = self.take(name)
        try:
            return None if value is None else datetime.fromisoformat(value).astimezone(UTC)
        except (TypeError, ValueError, OverflowError) as error:
            raise self.problem(name, value, "a time like 2026-11-30T12:00:00Z") from error

    def done(self) -> None:
        """There is nothing in it that was not asked for."""
        if self.rest:
            raise refused(self.place, f"there is no field `{text.clean(next(iter(self.rest)))[:40]}`")

    def problem(self, name: str, value: Any, right: str) -> errors.ImportRefused:
        shown = f"'{value[:40]}'" if isinstance(value, str) else kind(value)
        return refused(self.place, f"`{name}` is {shown}, it must be {right}")

    def _within(self, name: str) -> str:
        return f"{self.place}, `{text.clean(name)[:40]}`"

    def _wrong(self, value: Any) -> dict[str, Any]:
        raise refused(self.place, f"this is {kind(value)}, it must be an object")


def is_count(value: Any) -> bool:
    """Whether it can be a number of model tokens: sums of a few fit what Postgres calls an integer."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_COUNTED


def clean(value: Any, place: str, depth: int = 0) -> Any:
    """`value` as Postgres can store it: see `conversations.text`. Raises ImportRefused where it cannot be."""
    if depth > DEEPEST:
        raise refused(place, f"values are nested more than {DEEPEST} deep")
    if isinstance(value, str):
        return text.clean(value)
    if isinstance(value, list):
        return [clean(one, place, depth + 1) for one in value]
    if isinstance(value, dict):
        return {text.clean(name): clean(one, place, depth + 1) for name, one in value.items()}
    if isinstance(value, int | float) and not abs(value) <= LARGEST:  # nor is NaN
        raise refused(place, "a number is too large")
    return value
