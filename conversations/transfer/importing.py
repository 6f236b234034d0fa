"""A file of conversations becomes a person's, as a whole or not at all; what is theirs already is left alone."""

import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import IO

from django.db import transaction

from chatbackend.accounts.models import User
from conversations import access, errors, presets, turns
from conversations.models import Conversation, Generation, Message, Preset, new_id
from conversations.transfer import drafts, files
from conversations.transfer.drafts import Draft, DraftMessage, PresetDraft

AT_ONCE = 200  # rows in one statement
RETRY_SECONDS = 5

_one_at_a_time = threading.Lock()


@dataclass(frozen=True, slots=True)
class Imported:
    """`conversations`: the new ones, in the order of the file; `already`: how many of the file were here before."""

    conversations: list[uuid.UUID]
    already: int
    presets: int  # new ones
    left_out: int  # presets whose name one has, or beyond as many as one may have


def imported(person: int, file: IO[bytes]) -> Imported:
    """Import what is in `file`. Raises ImportRefused, ImportUnderWay; then nothing is stored.

    One file at a time in each process: it may take a hundred megabytes.
    """
    with _alone(), transaction.atomic():
        # Two files of one person come one after the other, so that what is in both is stored once.
        User.objects.select_for_update(no_key=True).get(pk=person)
        made: list[uuid.UUID] = []
        new: set[bytes] = set()
        already = new_presets = left_out = 0
        for at, draft in enumerate(files.drafts(file)):
            if at >= files.MOST:
                raise files.too_many()
            if isinstance(draft, PresetDraft):
                stored = _store_preset(person, draft)
                new_presets += stored
                left_out += not stored
                continue
            digest = draft.digest()
            if digest not in new and _is_here(person, draft, digest):
                already += 1
                continue
            made.append(_store(person, draft, digest))
            new.add(digest)
    return Imported(made, already, new_presets, left_out)


def _is_here(person: int, draft: Draft, digest: bytes) -> bool:
    """Imported before, or still where it was exported, all of it. Twice in one file is twice."""
    mine = access.owned_by(person)
    if mine.filter(import_digest=digest).exists():
        return True
    if draft.source is None or not mine.filter(pk=draft.source).exists():
        return False
    ids = Message.objects.filter(conversation=draft.source).values_list("pk", flat=True)
    return {message.key for message in draft.messages} <= set(map(str, ids))


def _store_preset(person: int, draft: PresetDraft) -> bool:
    """Unless there is one of that name, or there are as many as one person may have."""
    theirs = Preset.objects.filter(owner=person)
    if theirs.filter(name=draft.name).exists() or theirs.count() >= presets.MOST:
        return False
    Preset.objects.create(owner_id=person, **asdict(draft))
    return True


def _store(person: int, draft: Draft, digest: bytes) -> uuid.UUID:
    # Versions are shown in the order of their ids.
    ids = dict(zip([message.key for message in draft.messages], _new_ids(len(draft.messages)), strict=True))
    made = Conversation.objects.create(
        owner_id=person, title=draft.title, model=draft.model, system_prompt=draft.system_prompt, params=draft.params,
        leaf_id=ids[draft.leaf] if draft.leaf else None, created_at=draft.created_at, updated_at=draft.updated_at,
        pinned=draft.pinned, archived=draft.archived, imported=draft.imported, import_digest=digest,
    )  # fmt: skip
    messages = list(drafts.parents_first(draft))
    for begin in range(0, len(messages), AT_ONCE):
        part = messages[begin : begin + AT_ONCE]
        Message.objects.bulk_create([_message(made.pk, one, ids) for one in part])
    runs = [generation for message in draft.messages for generation in _generations(made, message, ids)]
    for begin in range(0, len(runs), AT_ONCE):
        turns.keep_ended(runs[begin : begin + AT_ONCE])
    return made.pk


def _message(conversation: uuid.UUID, draft: DraftMessage, ids: dict[str, uuid.UUID]) -> Message:
    return Message(
        pk=ids[draft.key], conversation_id=conversation, parent_id=ids[draft.parent] if draft.parent else None,
        role=draft.role, text=draft.text, reasoning=draft.reasoning, created_at=draft.created_at,
        imported=draft.imported, notes=drafts.notes(draft.imported) or None,
    )  # fmt: skip


def _generations(where: Conversation, draft: DraftMessage, ids: dict[str, uuid.UUID]) -> Iterator[Generation]:
    for id_, run in zip(_new_ids(len(draft.runs)), draft.runs, strict=True):
        yield Generation(
            pk=id_, conversation=where, message_id=ids[draft.key], owner_id=where.owner_id, client_id=uuid.uuid4(),
            request_digest=b"", kind=run.kind, model=run.model, params=run.params, status=run.status, seq=1,
            queued_at=run.queued_at, started_at=run.started_at, finished_at=run.finished_at,
            finish_reason=run.finish_reason, error=run.error, usage=run.usage, timings=run.timings, imported=True,
        )  # fmt: skip


def _new_ids(count: int) -> Sequence[uuid.UUID]:
    """In order."""
    return sorted(new_id() for _ in range(count))


@contextmanager
def _alone() -> Iterator[None]:
    if not _one_at_a_time.acquire(blocking=False):
        raise errors.ImportUnderWay(retry_after=RETRY_SECONDS)
    try:
        yield
    finally:
        _one_at_a_time.release()
