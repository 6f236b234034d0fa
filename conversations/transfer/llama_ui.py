"""A conversation as llama-server's own page exports it: `{conv, messages}`, from the page of 2025 to that of 2026.

Its messages form a tree below a `root` without text. A system prompt is a message there: that of the shown path becomes
the conversation's, those of other branches stay messages. `timestamp` and `lastModified` are milliseconds since 1970.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from conversations.api.serializers import LONGEST_TITLE
from conversations.models import Generation
from conversations.transfer.drafts import Draft, DraftMessage, Run, by_key
from conversations.transfer.records import LONGEST_WORD, Record, clean, is_count, refused

FROM = "llama.cpp"
ROLES = {"user": "user", "assistant": "assistant", "system": "user", "tool": "user"}  # what each is here
LATEST = 253_402_300_799_000  # milliseconds: the end of the year 9999

_COUNTS, _TIMES = ("prompt_n", "cache_n", "predicted_n"), ("prompt_ms", "predicted_ms")


def draft(value: Any, place: str) -> Draft:
    """Raises ImportRefused."""
    session = Record(value, place)
    conv = Record(session.take("conv"), f"{place}, `conv`")
    if conv.rest.get("encryption"):
        raise refused(place, "it is encrypted, export it from that page without encryption")
    changed_at, name = _time(conv, "lastModified"), conv.string("name", "")
    current, pinned = _key(conv, "currNode"), conv.rest.pop("pinned", False) is True
    nodes = [_Node(one, f"{place}, message {at}", changed_at) for at, one in enumerate(session.list("messages"), 1)]
    by_key((node.message for node in nodes), place)
    tree = _Tree(nodes, current)
    kept = {key: one for key, one in clean(conv.rest, conv.place).items() if key not in ("id", "convId")}
    long = len(name) > LONGEST_TITLE
    return Draft(
        place, f"{name[: LONGEST_TITLE - 1]}…" if long else name, tree.began_at or changed_at, changed_at, tree.leaf,
        tree.messages, system_prompt=tree.system_prompt, pinned=pinned,
        imported={"from": FROM, **kept, **({"name": name} if long else {})},
    )  # fmt: skip


class _Node:
    """A message of the file: what becomes of it, and where it stood."""

    def __init__(self, value: Any, place: str, changed_at: datetime) -> None:
        record = Record(value, place)
        key = _key(record, "id")
        if key is None:
            raise refused(place, "`id` is missing")
        role = record.choice("role", ROLES)
        kind = record.string("type", "text")
        self.children = [str(child) for child in record.list("children", [])]
        self.is_root = kind == "root"
        self.is_system = role == "system"
        at = _time(record, "timestamp") if record.rest.get("timestamp") is not None else changed_at
        content = record.string("content") if record.rest.get("content") is not None else ""
        parent, reasoning = _key(record, "parent"), _reasoning(record)
        run = _run(record, at) if role == "assistant" else None
        kept = _kept(record) | ({"role": role} if role != ROLES[role] else {})
        kept |= {} if kind in ("text", "root", "system") else {"type": kind}
        self.message = DraftMessage(
            key, parent, ROLES[role], content, reasoning, at, (run,) if run else (), kept or None
        )  # fmt: skip


class _Tree:
    """The messages without the root and without the system prompt of the path that is shown."""

    def __init__(self, nodes: list[_Node], current: str | None) -> None:
        self._nodes = {node.message.key: node for node in nodes}
        path = self._path(self._last(nodes, current))
        prompt = path[0] if path and path[0].is_system else None
        self.system_prompt = prompt.message.text if prompt else ""
        there = {node.message.key: node.message for node in nodes if not node.is_root and node is not prompt}
        self.leaf = path[-1].message.key if path and path[-1] is not prompt else None
        self.messages = self._in_order(
            replace(message, parent=message.parent if message.parent in there else None) for message in there.values()
        )
        self.began_at = min((node.message.created_at for node in nodes), default=None)

    def _last(self, nodes: list[_Node], current: str | None) -> _Node | None:
        """What is shown there ends with `current`, else with the newest."""
        chosen = self._nodes.get(current or "")
        if chosen and not chosen.is_root:
            return chosen
        return max((node for node in nodes if not node.is_root), key=lambda node: node.message.created_at, default=None)

    def _path(self, last: _Node | None) -> list[_Node]:
        """From the first to `last`, without the root; a circle is gone through once."""
        path: dict[str, _Node] = {}
        while last is not None and not last.is_root and last.message.key not in path:
            path[last.message.key] = last
            last = self._nodes.get(last.message.parent or "")
        return list(path.values())[::-1]

    def _in_order(self, messages: Iterable[DraftMessage]) -> list[DraftMessage]:
        """By time; versions of each other in the order in which their parent names them."""
        ordered = sorted(messages, key=lambda message: message.created_at)
        named = {key: at for node in self._nodes.values() for at, key in enumerate(node.children)}
        places: dict[str | None, list[int]] = {}
        for at, message in enumerate(ordered):
            places.setdefault(message.parent, []).append(at)
        for of_parent in places.values():
            versions = [ordered[at] for at in of_parent]
            versions.sort(key=lambda message: named.get(message.key, len(named)))
            for at, message in zip(of_parent, versions, strict=True):
                ordered[at] = message
        return ordered


def _reasoning(record: Record) -> str:
    names = ("reasoningContent", "thinking")  # the second on older pages
    said = [record.string(name) if record.rest.get(name) is not None else "" for name in names]
    return said[0] or said[1]


def _run(record: Record, at: datetime) -> Run | None:
    model, timings = record.take("model", ""), record.take("timings", None)
    if not isinstance(model, str) or len(model) > LONGEST_WORD:
        raise record.problem("model", model, f"a string of at most {LONGEST_WORD:,} characters")
    if not model and not timings:
        return None
    if timings is not None and not isinstance(timings, dict):
        raise record.problem("timings", timings, "an object")
    given: dict[str, Any] = timings or {}
    counts = {name: given[name] for name in _COUNTS if is_count(given.get(name))}
    figures = counts | {name: given[name] for name in _TIMES if _is_number(given.get(name))}
    if rest := {name: value for name, value in given.items() if name not in figures}:
        record.rest["timings"] = rest
    read, written, took = (figures.get(name, 0) for name in ("prompt_n", "predicted_n", "predicted_ms"))
    usage = {"prompt_tokens": read + figures.get("cache_n", 0), "completion_tokens": written}
    speed = {"tokens_per_second": written * 1000 / took} if took >= 1 else {}
    return Run(
        Generation.Kind.SEND.value, model, Generation.Status.DONE.value, at, None, at,
        usage=usage if figures else None, timings={**figures, **speed} if figures else None,
    )  # fmt: skip


def _kept(record: Record) -> dict[str, Any]:
    """What there is no field for here; what is empty says nothing."""
    calls = record.take("toolCalls", None) or record.take("tool_calls", None)
    if isinstance(calls, str):
        calls = _parsed(calls)
    rest = clean(record.rest, record.place)
    kept = {name: value for name, value in rest.items() if name != "convId" and value not in ("", None, [], {})}
    return kept | ({"toolCalls": calls} if calls else {})


def _parsed(words: str) -> Any:
    """In a file of lines they are JSON, in the older ones a string with JSON in it."""
    try:
        return clean(json.loads(words), "`toolCalls`")
    except (ValueError, RecursionError):
        return words


def _key(record: Record, name: str) -> str | None:
    """An id, which older pages have as a number; None for what stands for nothing: null, "" and -1."""
    value = record.take(name, None)
    if isinstance(value, bool) or not isinstance(value, str | int | None):
        raise record.problem(name, value, "a string or a number")
    return None if value in (None, "", -1) else str(value)


def _time(record: Record, name: str) -> datetime:
    value = record.take(name)
    if not _is_number(value) or not 0 <= value <= LATEST:
        raise record.problem(name, value, "a time in milliseconds since 1970")
    return datetime.fromtimestamp(value / 1000, UTC)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
