"""The one way to a person's data: for REST, event streams and sockets alike."""

from uuid import UUID

from django.db.models import QuerySet

from conversations import errors
from conversations.models import Conversation, Generation, Message


def owned_by(person: int) -> QuerySet[Conversation]:
    """Everything `person` may see; whatever is not in here does not exist for them, and so what they deleted."""
    return Conversation.objects.filter(owner=person, deleted_at=None)


def conversation(person: int, id_: UUID) -> Conversation:
    """Raises NotFound, the same for a missing one and another's."""
    found = owned_by(person).filter(pk=id_).first()
    if found is None:
        raise errors.NotFound
    return found


def generation(person: int, id_: UUID) -> Generation:
    """Raises NotFound."""
    found = Generation.objects.filter(pk=id_, conversation__in=owned_by(person)).first()
    if found is None:
        raise errors.NotFound
    return found


def message(person: int, id_: UUID) -> Message:
    """Raises NotFound."""
    found = Message.objects.defer("imported").filter(pk=id_, conversation__in=owned_by(person)).first()
    if found is None:
        raise errors.NotFound
    return found
