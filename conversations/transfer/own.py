"""A conversation of our own JSON (docs/export.md)."""

from typing import Any
from uuid import UUID

from conversations import parameters
from conversations.api.serializers import LONGEST_NAME, LONGEST_SYSTEM_PROMPT, LONGEST_TITLE
from conversations.models import Generation, Message
from conversations.transfer.drafts import Draft, DraftMessage, PresetDraft, Run, by_key
from conversations.transfer.records import LONGEST_WORD, Record, is_count, refused

_ENDED = {status.value: status.value for status in Generation.Status} | {
    live.value: Generation.Status.INTERRUPTED.value for live in Generation.LIVE
}
_NUMBERS = ("queue_ms", "ttft_ms", "prompt_n", "prompt_ms", "cache_n", "tokens_per_second", "busy", "estimate_error")


def draft(value: Any, place: str) -> Draft:
    """Raises ImportRefused."""
    record = Record(value, place)
    id_, title = record.string("id"), record.string("title", longest=LONGEST_TITLE)
    messages = [_message(one, f"{place}, message {at}") for at, one in enumerate(record.list("messages"), 1)]
    known = by_key(messages, place)
    for at, message in enumerate(messages, 1):
        if message.parent is not None and message.parent not in known:
            raise refused(f"{place}, message {at}", f"`parent` is '{message.parent[:40]}', which is no message of it")
    leaf = record.take("leaf")
    if leaf is not None and leaf not in known:
        raise record.problem("leaf", leaf, "the id of a message of this conversation, or null")
    made = Draft(
        place, title, record.time("created_at"), record.time("updated_at"), leaf, messages,
        model=_model(record), system_prompt=_system_prompt(record), params=_params(record) or {},
        pinned=record.flag("pinned"), archived=record.flag("archived"), imported=_imported(record),
        source=_uuid(id_),
    )  # fmt: skip
    record.done()
    return made


def preset(value: Any, place: str) -> PresetDraft:
    """Raises ImportRefused."""
    record = Record(value, place)
    name = record.string("name").strip()
    if not 1 <= len(name) <= LONGEST_NAME:
        raise record.problem("name", name, f"a name of 1 to {LONGEST_NAME} characters")
    made = PresetDraft(name, _model(record), _system_prompt(record), _params(record) or {})
    record.done()
    return made


def _model(record: Record) -> str:
    return record.string("model", longest=LONGEST_WORD)


def _system_prompt(record: Record) -> str:
    return record.string("system_prompt", longest=LONGEST_SYSTEM_PROMPT)


def _message(value: Any, place: str) -> DraftMessage:
    record = Record(value, place)
    parent = record.take("parent")
    if parent is not None and not isinstance(parent, str):
        raise record.problem("parent", parent, "the id of a message, or null")
    runs = tuple(_run(one, f"{place}, generation {at}") for at, one in enumerate(record.list("generations", []), 1))
    made = DraftMessage(
        record.string("id"), parent, record.choice("role", Message.Role.values), record.string("text"),
        record.string("reasoning"), record.time("created_at"), runs, _imported(record),
    )  # fmt: skip
    record.done()
    return made


def _imported(record: Record) -> dict[str, Any] | None:
    return record.object("imported") if "imported" in record.rest else None


def _run(value: Any, place: str) -> Run:
    record = Record(value, place)
    queued_at, finished_at = record.time("queued_at"), record.time_or_null("finished_at")
    made = Run(
        record.choice("kind", Generation.Kind.values), _model(record),
        _ENDED[record.choice("status", _ENDED)], queued_at, record.time_or_null("started_at"),
        finished_at or queued_at, record.string("finish_reason", longest=LONGEST_WORD),
        params=_params(record), error=_error(record), usage=_usage(record), timings=_timings(record),
    )  # fmt: skip
    record.done()
    return made


def _params(record: Record) -> dict[str, Any] | None:
    given = record.object("params")
    good, wrong = parameters.read(given or {})
    if wrong:
        raise refused(record.place, next(iter(wrong.values())).rstrip("."))
    return None if given is None else parameters.without_nulls(good)


def _error(record: Record) -> dict[str, Any] | None:
    found = record.object("error")
    if found is not None:
        problem = Record(found, f"{record.place}, `error`")
        problem.string("code")
        problem.string("detail")
        problem.flag("retryable")
    return found


def _usage(record: Record) -> dict[str, Any] | None:
    found = record.object("usage")
    for name in ("prompt_tokens", "completion_tokens") if found is not None else ():
        if (value := (found or {}).get(name)) is not None and not is_count(value):
            raise record.problem(f"usage.{name}", value, "a whole number of tokens or null")
    return found


def _timings(record: Record) -> dict[str, Any] | None:
    """What shows these figures counts on it that they are numbers."""
    found = record.object("timings")
    for name in _NUMBERS if found is not None else ():
        value = (found or {}).get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise record.problem(f"timings.{name}", value, "a number or null")
    if found and not isinstance(found.get("replay_cause"), str | None):
        raise record.problem("timings.replay_cause", found["replay_cause"], "a string or null")
    return found


def _uuid(words: str) -> UUID | None:
    try:
        return UUID(words)
    except ValueError:
        return None
