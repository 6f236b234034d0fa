"""The one way to a person's data: for REST, event streams and sockets alike."""

from typing import TypeVar
from uuid import UUID

from django.db.models import Model, Q, QuerySet

from conversations import errors
from conversations.models import Conversation, Generation, Message, Preset

Row = TypeVar("Row", bound=Model)


def owned_by(person: int) -> QuerySet[Conversation]:
    """Everything `person` may see; whatever is not in here does not exist for them, and so what they deleted."""
    return Conversation.objects.filter(owner=person, deleted_at=None)


def conversation(person: int, id_: UUID) -> Conversation:
    """Raises NotFound, the same for a missing one and another's."""
    return _one(owned_by(person), id_)


def generation(person: int, id_: UUID) -> Generation:
    """Raises NotFound."""
    return _one(Generation.objects.filter(conversation__in=owned_by(person)), id_)


def message(person: int, id_: UUID) -> Message:
    """Raises NotFound."""
    return _one(Message.objects.defer("imported").filter(conversation__in=owned_by(person)), id_)


def presets(person: int) -> QuerySet[Preset]:
    """Their own, and those for everybody."""
    return Preset.objects.filter(Q(owner=person) | Q(for_everybody=True))


def preset(person: int, id_: UUID) -> Preset:
    """Raises NotFound."""
    return _one(presets(person), id_)


def own_preset(person: int, id_: UUID) -> Preset:
    """Raises NotFound; ReadOnly for one that is for everybody and another's, or whose owner may offer none any more."""
    found = preset(person, id_)
    if found.owner_id != person:
        raise errors.ReadOnly
    if not may_change(found, person):
        raise errors.ReadOnly("This preset is for everybody, and you may no longer offer any: save one of your own.")
    return found


def may_change(found: Preset, person: int) -> bool:
    """What everybody begins with is only changed by an owner who may offer presets."""
    offers = not found.for_everybody or (found.owner.is_staff and found.owner.has_perm("conversations.change_preset"))
    return found.owner_id == person and offers


def _one(rows: QuerySet[Row], id_: UUID) -> Row:
    found = rows.filter(pk=id_).first()
    if found is None:
        raise errors.NotFound
    return found
