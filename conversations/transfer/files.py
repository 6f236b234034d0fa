"""What was uploaded, taken apart into conversations without reading more than one of them into memory.

Known are our own JSON, and of llama-server's own page: an array of conversations, one alone, lines of JSON (one for
each conversation and message), and a ZIP file of such lines.
"""

import mmap
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any

from conversations import errors, json_text
from conversations.transfer import llama_ui, own
from conversations.transfer.drafts import Draft, PresetDraft
from conversations.transfer.exporting import FORMAT, VERSION
from conversations.transfer.records import NOTHING, refused

LARGEST = 32 * 1024 * 1024  # bytes: of a file, and of what is in a ZIP file
MOST_VALUES = 1_000_000  # of one conversation: each takes up to a hundred bytes of memory
MOST = 20_000  # conversations and presets: each takes a millisecond or two; and files in a ZIP file
MOST_MARKS = 5_000_000  # brackets and commas of a file: about a second of work for a million, for 60,000 messages

KNOWN = "Choose a file that was exported here, or by llama-server's own page"
# Of an object that is a whole file; it may have millions of others.
_MEMBERS = ("conv", "messages", "format", "version", "presets", "conversations")
_SPACE = b" \t\r\n"
_MARK = b"\xef\xbb\xbf"
_ZIP = b"PK\x03\x04"
_IN_ZIP = re.compile(rb"PK\x01\x02")  # a file, in the directory
# Up to the next bracket or comma that is not in a string.
_NEXT = re.compile(rb'(?:[^"\[\]{},]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+([\[\]{},])', re.DOTALL)
_NAME = re.compile(rb'\s*("[^"\\]*+(?:\\.[^"\\]*+)*+")\s*:', re.DOTALL)

Bytes = bytes | mmap.mmap
Reader = Callable[[Any, str], Draft]


@dataclass(frozen=True, slots=True)
class Span:
    """A value within a file, from `begin` up to `end`."""

    begin: int
    end: int


def drafts(file: IO[bytes]) -> Iterator[Draft | PresetDraft]:
    """The presets and conversations in `file`, an open one of at most LARGEST bytes. Raises ImportRefused."""
    if not file.read(1):
        raise refused("", f"The file is empty. {KNOWN}")
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if content[:4] == _ZIP:
            if sum(1 for _ in _IN_ZIP.finditer(content)) > MOST:  # each would take half a kilobyte of memory
                raise too_many()
            file.seek(0)
            yield from _of_lines(_lines_of_zip(file))
            return
        begin = _skip_space(content, len(_MARK) if content[:3] == _MARK else 0)
        if content[begin : begin + 1] == b"[":
            yield from _of_list(content, begin, llama_ui.draft, alone=True)
        elif content[begin : begin + 1] != b"{":
            raise refused("", f"This file is in no form that is known here. {KNOWN}")
        elif _is_session(content, begin):
            content.seek(begin)
            yield from _of_lines(iter(content.readline, b""))
        else:
            yield from _of_object(content, begin)


def too_many() -> errors.ImportRefused:
    return refused("", f"This file has more than {MOST:,} conversations: import them in several files")


def _of_object(content: Bytes, begin: int) -> Iterator[Draft | PresetDraft]:
    members = {name: span for name, span in _members(content, begin, alone=True) if name in _MEMBERS}
    if {"conv", "messages"} <= members.keys():
        yield llama_ui.draft(_value(content, Span(begin, len(content)), "conversation 1"), "conversation 1")
        return
    head = {name: _value(content, members[name], "") for name in ("format", "version") if name in members}
    version = head.get("version")
    if head.get("format") != FORMAT or "conversations" not in members:
        raise refused("", f"This file is in no form that is known here. {KNOWN}")
    if version != VERSION:
        raise refused("", f"This file has version {version!s:.20} of our format, this site reads version {VERSION}")
    if "presets" in members:
        for at, value in enumerate(_list(content, members["presets"], "`presets`"), 1):
            yield own.preset(value, f"preset {at}")
    yield from _of_list(content, members["conversations"].begin, own.draft)


def _list(content: Bytes, span: Span, place: str) -> list[Any]:
    value = _value(content, span, place)
    if not isinstance(value, list):
        raise refused(place, f"this is {json_text.kind(value)}, it must be a list")
    return value


def _of_list(content: Bytes, begin: int, draft: Reader, alone: bool = False) -> Iterator[Draft]:
    for at, span in enumerate(_elements(content, begin, alone), 1):
        place = f"conversation {at}"
        yield draft(_value(content, span, place), place)


def _of_lines(lines: Iterator[bytes]) -> Iterator[Draft]:
    """A line of type `session` begins a conversation, those of type `message` follow; others are for newer pages."""
    session: dict[str, Any] | None = None
    count = values = 0
    for number, line in enumerate(lines, 1):
        if not (words := line.strip(_SPACE + _MARK)):
            continue
        values += _count(words)
        record = _parsed(words, f"line {number}", values)
        kind = record.get("type") if isinstance(record, dict) else None
        if kind == "session":
            if session:
                yield llama_ui.draft(session, f"conversation {count}")
            conv = {name: value for name, value in record.items() if name not in ("type", "harness")}
            session, count, values = {"conv": conv, "messages": []}, count + 1, _count(words)
        elif kind == "message" and session is not None:
            session["messages"].append(record.get("message"))
        elif kind == "message" or kind is None:
            raise refused(f"line {number}", "here a conversation should begin, with `type` session")
    if session is None:
        raise refused("", f"There is no conversation in this file. {KNOWN}")
    yield llama_ui.draft(session, f"conversation {count}")


def _lines_of_zip(file: IO[bytes]) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(file) as archive:
            inside = [one for one in archive.infolist() if one.filename.lower().endswith(".jsonl")]
            if sum(one.file_size for one in inside) > LARGEST:
                why = f"What is in this ZIP file has more than {LARGEST:,} bytes: import its files one by one"
                raise refused("", why)
            for one in inside:
                with archive.open(one) as lines:
                    yield from lines
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, zlib.error) as error:
        raise refused("", "This ZIP file is damaged or encrypted") from error


def _is_session(content: Bytes, begin: int) -> bool:
    """Whether the first of lines is there. Nothing but names is parsed: it may be the whole of another file."""
    for name, span in _members(content, begin):
        if name == "type":
            return content[span.begin : span.end].strip() == b'"session"'
    return False


def _members(content: Bytes, begin: int, alone: bool = False) -> Iterator[tuple[str, Span]]:
    for span in _elements(content, begin, alone):
        if not (name := _NAME.match(content, span.begin)):
            raise _no_json("")
        yield str(json_text.read(name[1])), Span(_skip_space(content, name.end()), span.end)


def _elements(content: Bytes, begin: int, alone: bool = False) -> Iterator[Span]:
    """What stands between the commas of the list or object that begins there; `alone`: and nothing after it.

    Raises ImportRefused, also where it does not end.
    """
    depth, element, at, marks = 0, begin + 1, begin, 0
    while found := _NEXT.match(content, at):
        at = found.end()
        if (marks := marks + 1) > MOST_MARKS:
            raise refused("", "This file has too many values in it: import its conversations in several files")
        depth += {b"[": 1, b"{": 1, b"]": -1, b"}": -1, b",": 0}[found[1]]
        ends = depth == 0
        if ends or (depth == 1 and found[1] == b","):
            first = _skip_space(content, element)
            if first < at - 1 or not ends:
                yield Span(first, at - 1)
            element = at
        if ends:
            if alone and content[at:].strip():
                raise _no_json("", "There is something after the end of this file's JSON.")
            return
    raise _no_json("")


def _value(content: Bytes, span: Span, place: str) -> Any:
    words = content[span.begin : span.end]
    return _parsed(words, place, _count(words))


def _count(words: bytes) -> int:
    """Of the values in it: so many at most."""
    return words.count(b",") + words.count(b"[") + words.count(b"{")


def _parsed(words: bytes, place: str, values: int) -> Any:
    if values > MOST_VALUES:
        raise refused(place, f"it has more than {MOST_VALUES:,} values in it")
    try:
        return json_text.read(words)
    except errors.Malformed as error:
        raise _no_json(place, error.detail) from error


def _no_json(place: str, why: str = "This file is cut off, or no JSON.") -> errors.ImportRefused:
    return errors.ImportRefused(f"{f'{place}: ' if place else ''}{why} {NOTHING}", place=place)


def _skip_space(content: Bytes, at: int) -> int:
    while content[at : at + 1] in (b" ", b"\t", b"\r", b"\n"):
        at += 1
    return at
