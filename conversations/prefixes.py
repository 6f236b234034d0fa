"""The system prompts of presets, read once on each server: conversations that begin with one find it read already.

A file of such a prompt holds nobody's words but those of the preset. It is restored for conversations with exactly that
prompt: of a preset for everybody, for anybody; of a person's own, for that person alone, or how soon an answer begins
would tell somebody else that it is there.
"""

import json
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models.functions import Now

from conversations import asking, placeholders
from conversations.models import Conversation, Preset
from conversations.outline import Messages

MOST = 8  # presets; those for everybody before others, the newest first
SHORTEST = 160  # bytes of UTF-8; fewer are read sooner than a file
_KIND = uuid.UUID("6f2a1c0e-5d0b-4f7e-9a53-0c7b5c1d2e48")  # no holder is made from anything else by this


@dataclass(frozen=True, slots=True)
class Prefix:
    """One prompt, and what the template of its server is told beside it; `holder` names it there."""

    holder: uuid.UUID
    system_prompt: str
    params: Mapping[str, Any]


def wanted(switches: Collection[str]) -> list[Prefix]:
    """Those to be read on a server with such a template, the most wanted first, as they are to be sent now."""
    presets = Preset.objects.annotate(now=Now()).exclude(system_prompt="").order_by("-for_everybody", "-updated_at")
    found: dict[uuid.UUID, Prefix] = {}
    for preset in presets[: 4 * MOST]:
        prompt = placeholders.expanded(preset.system_prompt, preset.now)
        if len(prompt.encode()) < SHORTEST or placeholders.timed(preset.system_prompt):
            continue
        holder = _holder(
            prompt, asking.decided(preset.params, switches), None if preset.for_everybody else preset.owner_id
        )
        found.setdefault(holder, Prefix(holder, prompt, preset.params))
    return list(found.values())[:MOST]


def holders(conversation: uuid.UUID, asked: Messages, decided: Mapping[str, Any]) -> list[uuid.UUID]:
    """Whose files hold what `asked` of `conversation` begins with, if they are there."""
    if not asked or asked[0]["role"] != "system" or len(asked[0]["content"].encode()) < SHORTEST:
        return []
    owner = Conversation.objects.values_list("owner", flat=True).filter(pk=conversation).first()
    return [_holder(asked[0]["content"], decided, whose) for whose in (None, owner)]


def is_one(holder: uuid.UUID) -> bool:
    """Whether `holder` is a preset's prompt; those of conversations are UUIDs of another version."""
    return holder.version == 5


def _holder(system_prompt: str, decided: Mapping[str, Any], owner: int | None) -> uuid.UUID:
    return uuid.uuid5(_KIND, json.dumps([owner, system_prompt, sorted(decided.items())]))
