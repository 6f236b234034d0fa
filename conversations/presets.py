"""Presets: what a person saves to begin conversations with. Copied, never referred to."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.db.models.functions import Lower, Now

from chatbackend.accounts.models import User
from conversations import access, errors, parameters, placeholders
from conversations.models import Preset
from slots import servers

Stored = TypeVar("Stored")

MOST = 100  # of one person


@dataclass(frozen=True, slots=True)
class Warned:
    """A preset that everybody may see, with what is to be said of its system prompt."""

    pk: UUID
    name: str
    warnings: list[str]


def listed(person: int) -> QuerySet[Preset]:
    """Those that `person` can choose from, by name, their own first."""
    return access.presets(person).order_by("for_everybody", Lower("name"), "pk")


def create(person: int, fields: dict[str, Any]) -> Preset:
    """Raises Invalid when the name is taken or there are MOST."""
    fields |= {"params": parameters.without_nulls(fields.get("params"))}
    with transaction.atomic():
        # One after the other, so that of any number at once none passes the limit.
        User.objects.select_for_update(no_key=True).get(pk=person)
        if Preset.objects.filter(owner=person).count() >= MOST:
            raise errors.Invalid(f"You have {MOST} presets, which is as many as one person may: delete one first.")
        made = _named(fields, lambda: Preset.objects.create(owner_id=person, **fields))
    made.refresh_from_db()
    return made


def change(person: int, preset: UUID, fields: dict[str, Any]) -> Preset:
    """Raises NotFound, ReadOnly, and Invalid when the name is taken."""
    mine = Preset.objects.filter(pk=access.own_preset(person, preset).pk)
    if "params" in fields:
        fields |= {"params": parameters.merged(fields["params"])}
    with transaction.atomic():
        _named(fields, lambda: mine.update(**fields, updated_at=Now()))
    return access.preset(person, preset)


def delete(person: int, preset: UUID) -> None:
    """Raises NotFound, ReadOnly."""
    access.own_preset(person, preset).delete()


def copied(person: int, preset: UUID, given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a conversation that begins with `preset`; what was `given` beside it counts more.

    Raises Invalid for a preset that `person` does not have, and for one whose model is not served.
    """
    found = access.presets(person).filter(pk=preset).first()
    if found is None:
        raise _invalid("preset", "You have no preset with this id.")
    served = servers.models()
    if given.get("model", found.model) not in ("", *served):
        names = ", ".join(served) or "none at the moment"
        said = f"The preset “{found.name}” is for the model {found.model!r}, which no server has; served: {names}."
        raise _invalid("preset", f"{said} Send model beside it to choose another; empty takes any.")
    params = found.params | (given.get("params") or {})
    return {"model": found.model, "system_prompt": found.system_prompt, **given, "params": params}


def offered_and_warned_of() -> list[Warned]:
    """By name. One query."""
    offered = Preset.objects.filter(for_everybody=True, system_prompt__contains="{").order_by("name")
    said = [Warned(preset.pk, preset.name, placeholders.warnings(preset.system_prompt)) for preset in offered]
    return [one for one in said if one.warnings]


def _named(fields: dict[str, Any], store: Callable[[], Stored]) -> Stored:
    try:
        return store()
    except IntegrityError as error:
        if "preset_name_once" not in str(error):
            raise
        raise _invalid("name", f"You have a preset “{fields['name']}” already: choose another name.") from error


def _invalid(field: str, sentence: str) -> errors.Invalid:
    return errors.Invalid(f"{field}: {sentence}", errors={field: [sentence]})
