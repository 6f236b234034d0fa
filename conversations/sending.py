"""What begins a turn: a person's message, or their wish for another answer or for more of one, and its queued answer.

Each stores a generation as `queued` exactly once per `client_id`; from there on only `turns` moves it.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from django.conf import settings
from django.core.exceptions import ObjectDoesNotExist
from django.db import IntegrityError, transaction
from django.db.models.functions import Now

from conversations import access, at_once, branches, errors, queue, titles, turns, wishes
from conversations.models import Conversation, Generation, Message
from conversations.signing_in import SignedIn
from conversations.wishes import Wish
from slots import leases


@dataclass(frozen=True, slots=True)
class Turn:
    """A person's message and the generation that answers it; `created` is False for a repeated send.

    `begun`: all there is to tell of it, where that is known without asking.
    """

    message: Message
    generation: Generation
    created: bool
    begun: at_once.Begun | None = None


def send(
    owner: int, conversation: uuid.UUID, client_id: uuid.UUID, words: str, parent: uuid.UUID | None, to_leaf: bool,
    branch: bool = True, check: Callable[[], None] | None = None, session: SignedIn | None = None,
) -> Turn:  # fmt: skip
    """Store a person's message and queue its answer, exactly once per `client_id`.

    `to_leaf` answers the newest message of the conversation and ignores `parent`; without `branch` that must be it.
    `check` raises what speaks against its length, and is called unless that cannot be; `session` is the sender's, if it
    is not known to be valid yet. Raises NotFound, TextEmpty, TextTooLong, ParentUnknown, ParentStale, ClientIdReused,
    TurnInProgress, TooManyWaiting, QueueFull, NotSignedIn; then nothing is stored.
    """
    words = wishes.checked(words)
    said = (words, "leaf" if to_leaf else str(parent))
    wish = wishes.wish(owner, conversation, client_id, Generation.Kind.SEND, *said)
    notify = turns.WORK_CHANNEL, turns.QUEUED
    begin = partial(at_once.send, wish, words, parent, to_leaf=to_leaf, branch=branch, notify=notify)
    seen = session.seen if session else None
    begun = begin(surely=check is not None, seen=seen) if seen or not session else None
    if session and not begun:
        session.check()
    if check and not begun:
        check()
        begun = begin()
    if begun:
        return Turn(begun.question, begun.generation, created=True, begun=begun)

    def ask(where: Conversation) -> Message:
        after = where.leaf_id if to_leaf else parent
        branches.refuse_while_answered(where, after)
        branches.check_parent(where, after, branch)
        queue.admit(owner)
        if not (where.title or where.leaf_id):
            named = {"title": titles.title_of(words), "title_due": settings.TITLES}
            Conversation.objects.filter(pk=where.pk).update(**named)
        said = Message.objects.create(conversation=where, parent_id=after, role=Message.Role.USER, text=words)
        return _answer_to(said)

    return _begin(wish, ask)


def regenerate(owner: int, message: uuid.UUID, client_id: uuid.UUID) -> Turn:
    """Queue another answer to the question that `message` answers, exactly once per `client_id`.

    Both answers stay; the conversation goes on from the new one. Raises NotFound, NotAnAnswer, ClientIdReused,
    TurnInProgress, TooManyWaiting, QueueFull; then nothing is stored.
    """
    question = branches.question_of(owner, message)
    wish = wishes.wish(owner, question.conversation_id, client_id, Generation.Kind.REGENERATE, str(message))

    def ask_again(where: Conversation) -> Message:
        branches.refuse_while_answered(where, question.pk)
        queue.admit(owner)
        return _answer_to(question)

    return _begin(wish, ask_again)


def continue_answer(owner: int, generation: uuid.UUID, client_id: uuid.UUID) -> Turn:
    """Queue more of the answer that `generation` left unfinished, as one text with it, exactly once per `client_id`.

    Raises NotFound, CannotContinue, ClientIdReused, TurnInProgress, TooManyWaiting, QueueFull; then nothing is stored.
    """
    stopped = access.generation(owner, generation)
    wish = wishes.wish(owner, stopped.conversation_id, client_id, Generation.Kind.CONTINUE, str(generation))

    def ask_for_more(where: Conversation) -> Message:
        branches.refuse_while_answered(where, stopped.message_id)
        answer = branches.answer_to_go_on_with(where, generation)
        queue.admit(owner)
        return answer

    return _begin(wish, ask_for_more)


def _begin(wish: Wish, ask: Callable[[Conversation], Message]) -> Turn:
    """A turn, or what an earlier request with this client_id made.

    `ask` gives the answer that is to be written, or raises what speaks against it.
    """
    try:
        with transaction.atomic():
            leases.end_if_paused()
            # The row lock makes two turns of one conversation one after the other.
            rows = Conversation.objects.select_for_update(of=("self",), no_key=True)
            where = rows.filter(pk=wish.conversation, owner=wish.owner, deleted_at=None).first()
            if where is None:
                raise errors.NotFound
            turn = _repeated(wish) or _queue(wish, where, ask(where))
    except IntegrityError:
        # The same client_id at once in two conversations: the other one is committed by now, and this one refused.
        if repeated := _repeated(wish):
            return repeated
        raise
    return _whole(turn) if turn.created else turn


def _whole(turn: Turn) -> Turn:
    """With what Postgres filled in, read after the commit: the workers are awake meanwhile. Raises NotFound."""
    try:
        turn.generation.refresh_from_db()
        turn.message.refresh_from_db()
    except ObjectDoesNotExist as error:
        raise errors.NotFound from error  # deleted with its conversation at this moment
    return turn


def _repeated(wish: Wish) -> Turn | None:
    mine = Generation.objects.select_related("message__parent").filter(owner=wish.owner)
    found = mine.filter(client_id=wish.client_id).first()
    if found is None:
        return None
    if bytes(found.request_digest) != wish.digest or found.message.parent is None:
        raise errors.ClientIdReused
    return Turn(found.message.parent, found, created=False)


def _answer_to(question: Message) -> Message:
    where = question.conversation_id
    return Message.objects.create(conversation_id=where, parent=question, role=Message.Role.ASSISTANT)


def _queue(wish: Wish, where: Conversation, answer: Message) -> Turn:
    assert answer.parent is not None, "the first message of a conversation is a person's"
    generation = Generation.objects.create(
        conversation=where, message=answer, owner_id=wish.owner, client_id=wish.client_id,
        request_digest=wish.digest, kind=wish.kind, model=where.model, params=where.params,
        system_prompt=where.system_prompt,
    )  # fmt: skip
    Conversation.objects.filter(pk=where.pk).update(leaf=answer, updated_at=Now(), archived=False)
    turns.wake()
    return Turn(answer.parent, generation, created=True)
