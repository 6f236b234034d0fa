"""Who may do what (the map in `chatbackend`), read from the source itself."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = [
    path
    for package in ("chatbackend", "slots", "conversations")
    for path in sorted((ROOT / package).rglob("*.py"))
    if "migrations" not in path.parts
]


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def users_of(module: str) -> set[str]:
    return {
        str(path.relative_to(ROOT))
        for path in SOURCES
        if any(name == module or name.startswith(f"{module}.") for name in imports(path))
    }


def those_with(pattern: str) -> set[str]:
    return {str(path.relative_to(ROOT)) for path in SOURCES if re.search(pattern, path.read_text())}


def test_slots_know_neither_people_nor_conversations() -> None:
    assert not {user for module in ("conversations", "chatbackend") for user in users_of(module) if "slots/" in user}


def test_only_the_client_speaks_http_to_a_server() -> None:
    assert users_of("requests") == {"slots/client.py"}


def test_only_events_touch_the_channel_layer() -> None:
    assert users_of("channels.layers") == {"conversations/events.py"}
    assert those_with(r"\.group_(send|add|discard)\(|channel_layer\.") == {"conversations/events.py"}


def test_only_leases_write_slots() -> None:
    assert those_with(r"UPDATE slots_slot|INSERT INTO slots_") == {"slots/lease_statements.py"}
    assert users_of("slots.lease_statements") == {"slots/leases.py"}
    assert those_with(r"Slot\.objects[^\n]*\.(update|create|bulk_create|delete|get_or_create)\(") == {"slots/leases.py"}


def test_only_turns_move_generations() -> None:
    moving = r"Generation\.objects[^\n]*\.(update|bulk_create)\(|UPDATE conversations_generation"
    assert those_with(moving) == {"conversations/turns.py"}


def test_only_sending_begins_generations() -> None:
    assert those_with(r"Generation\.objects[^\n]*\.(create|get_or_create)\(") == {"conversations/sending.py"}
    # What begins one in the statement that also stores its message is a step of `sending.send` and nobody else's.
    assert those_with("INSERT INTO conversations_generation") == {"conversations/at_once.py"}
    assert users_of("conversations.at_once") == {"conversations/sending.py"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_saves_a_whole_stale_row(path: Path) -> None:
    """`save()` writes every column as it was read, and would roll a lease back that moved on meanwhile."""
    assert not re.search(r"\b(slot|server|generation|row|running|lost)\.save\(", path.read_text())


def test_every_module_says_what_it_is_for_in_few_lines() -> None:
    for path in SOURCES:
        text = path.read_text()
        assert text.count("\n") <= 400, path
