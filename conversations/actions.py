"""What people do, whichever way it came in: change the data, then tell whoever listens, after the commit."""

import logging
from dataclasses import dataclass
from functools import partial
from typing import IO, Any
from uuid import UUID

from conversations import (
    access,
    branches,
    deleting,
    errors,
    events,
    fitting,
    frames,
    history,
    parameters,
    presets,
    sending,
    turns,
)
from conversations.frames import Frame
from conversations.models import Conversation, Message
from conversations.signing_in import SignedIn
from conversations.transfer import importing
from conversations.transfer.importing import Imported
from slots import servers

logger = logging.getLogger(__name__)

MOST_ANNOUNCED = 100  # imported conversations: a page of the list


@dataclass(frozen=True, slots=True)
class Sent:
    """A turn as the sender is told of it. `created` is False for a repeated send."""

    message: history.MessageView
    answer: history.MessageView
    generation: history.GenerationView
    announcement: Frame  # message.created
    created: bool


def send(
    person: int, conversation: UUID, client_id: UUID, text: str, parent: UUID | None, to_leaf: bool,
    branch: bool = True, session: SignedIn | None = None,
) -> Sent:  # fmt: skip
    """Store the message, queue its answer and announce both; if a `session` is given, as long as it is valid.

    Raises ContextExceeded, NotSignedIn, and what `sending.send` raises.
    """
    check = partial(fitting.check_message, person, conversation, client_id, text)
    turn = sending.send(person, conversation, client_id, text, parent, to_leaf, branch, check, session)
    return _sent(person, client_id, turn)


def edit(person: int, message: UUID, client_id: UUID, text: str) -> Sent:
    """Say `text` in place of the person's `message`, which stays as another version, and announce it.

    Raises NotFound, NotAQuestion, and what `sending.send` raises.
    """
    old = access.message(person, message)
    if old.role != Message.Role.USER:
        raise errors.NotAQuestion
    return send(person, old.conversation_id, client_id, text, old.parent_id, to_leaf=False)


def show_version(person: int, message: UUID) -> Conversation:
    """Go on from `message`, and from what followed it last; whoever looks on is shown that.

    Raises NotFound, TurnInProgress.
    """
    chosen = access.message(person, message)
    branches.choose(chosen)
    where = access.conversation(person, chosen.conversation_id)
    events.publish(where.pk, {"type": events.PATH_CHANGED, "conversation": str(where.pk)})
    events.publish_to_person(person, frames.conversation_updated(where))
    return where


def regenerate(person: int, message: UUID, client_id: UUID) -> Sent:
    """Queue another answer beside `message` and announce it.

    Raises ContextExceeded, and what `sending.regenerate` raises.
    """
    fitting.check_again(person, branches.question_of(person, message), client_id)
    return _sent(person, client_id, sending.regenerate(person, message, client_id))


def continue_answer(person: int, generation: UUID, client_id: UUID) -> Sent:
    """Queue more of the answer that `generation` left unfinished and announce it.

    Raises ContextExceeded, and what `sending.continue_answer` raises.
    """
    fitting.check_more(person, generation, client_id)
    return _sent(person, client_id, sending.continue_answer(person, generation, client_id))


def cancel(person: int, generation: UUID) -> history.GenerationView:
    """Stop a generation; its end is announced here if it had not begun, else by the worker. Raises NotFound."""
    view = history.generation(turns.cancel(person, generation))
    logger.info("cancel generation=%s status=%s person=%s", generation, view.status, person)
    if not view.live:
        events.publish(view.conversation, frames.ended(view))
    return view


def create(person: int, fields: dict[str, Any]) -> Conversation:
    """With what a `preset` in `fields` has. Raises Invalid for one that cannot be used."""
    if preset := fields.pop("preset", None):
        fields = presets.copied(person, preset, fields)
    fields |= {"params": parameters.without_nulls(fields.get("params"))}
    made = Conversation.objects.create(owner_id=person, **fields)
    made.refresh_from_db()
    events.publish_to_person(person, frames.conversation_updated(made))
    return made


def change(person: int, conversation: UUID, fields: dict[str, Any]) -> Conversation:
    """Its place in the list stays, which is by what was said: it is found where it was. Raises NotFound."""
    if "params" in fields:
        fields |= {"params": parameters.merged(fields["params"])}
    if "title" in fields:
        fields |= {"title_due": False}  # it is a person's now, also if a model is just making one
    if fields:
        access.owned_by(person).filter(pk=conversation).update(**fields)
    changed = access.conversation(person, conversation)
    events.publish_to_person(person, frames.conversation_updated(changed))
    return changed


def delete(person: int, conversation: UUID) -> None:
    """Stop what runs there and let nobody see it any more; it can be restored for a moment. Raises NotFound."""
    deleting.hide(person, conversation)
    events.publish_to_person(person, frames.conversation_deleted(conversation))


def restore(person: int, conversation: UUID) -> Conversation:
    """Undo a deletion of a moment ago. Raises NotFound when it is too late."""
    deleting.restore(person, conversation)
    restored = access.conversation(person, conversation)
    events.publish_to_person(person, frames.conversation_updated(restored))
    return restored


def import_file(person: int, file: IO[bytes]) -> Imported:
    """Store the conversations of a file, and announce the newest of them. Raises what `importing.imported` raises."""
    done = importing.imported(person, file)
    logger.info("imported conversations=%s already=%s person=%s", len(done.conversations), done.already, person)
    newest = access.owned_by(person).filter(pk__in=done.conversations).order_by("-updated_at")[:MOST_ANNOUNCED]
    events.publish_to_person(person, *map(frames.conversation_updated, newest))
    return done


def remove(person: int, conversation: UUID) -> None:
    """Delete for good, at once. Raises NotFound."""
    delete(person, conversation)
    deleting.remove(Conversation.objects.filter(pk=conversation))


def _sent(person: int, client_id: UUID, turn: sending.Turn) -> Sent:
    begun = turn.begun
    question, answer = history.begun(begun.question, begun.generation) if begun and begun.alone else _read(turn)
    newest = answer.generation
    generation = newest if newest and newest.id == turn.generation.pk else history.generation(turn.generation)
    sent = Sent(question, answer, generation, frames.created(client_id, question, answer), turn.created)
    if turn.created:
        logger.info("queued generation=%s conversation=%s person=%s", generation.id, generation.conversation, person)
        where = begun.conversation if begun else access.conversation(person, generation.conversation)
        _announce(where, sent, servers.why_none(turn.generation.model))
    return sent


def _read(turn: sending.Turn) -> tuple[history.MessageView, history.MessageView]:
    shown = history.path(turn.generation.conversation_id, turn.generation.message_id, limit=2)
    if len(shown) < 2:
        raise errors.NotFound  # deleted with its conversation at this moment
    return shown[0], shown[1]


def _announce(where: Conversation, sent: Sent, reason: str | None) -> None:
    generation = sent.generation
    events.publish(where.pk, sent.announcement)
    if generation.place:  # else a worker was faster
        events.publish(where.pk, frames.queued(where.pk, generation.id, generation.place, reason))
    events.publish_to_person(where.owner_id, frames.conversation_updated(where))
