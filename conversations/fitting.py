"""What the model could not read is refused before it is queued, with both numbers.

That is a question with its system prompt, where they leave too little room for an answer in the smallest slot of the
servers that have its model: any of them may be given. Nobody is asked about what has fewer bytes than that; of more the
server counts the tokens. Where none tells, what was said is taken, and the worker finds out.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from conversations import access, asking, errors, history, placeholders, text, window
from conversations.models import Generation, Message
from slots import control_tokens, counting, servers, statements
from slots.client import ServerError

_SMALLEST = """
SELECT id, n_ctx FROM slots_server
WHERE state = 'ready' AND trouble = '' AND ({model} = '' OR model = {model}) ORDER BY n_ctx, id LIMIT 1"""
_OF_MODEL = _SMALLEST.format(model="%(model)s")
_ASKED = """
SELECT v.id, v.n_ctx, c.params, c.system_prompt, c.created_at
FROM conversations_conversation c JOIN LATERAL ({smallest}) v ON true
WHERE c.id = %(conversation)s AND c.owner_id = %(person)s AND c.deleted_at IS NULL"""
_OF_CONVERSATION = _ASKED.format(smallest=_SMALLEST.format(model="c.model"))

# A condition for a statement's WHERE: words of `at_most` tokens need not be checked, asked in a `place` with this model
# and system prompt, of which a tokenizer makes no more than `counting.at_most` has it.
SURELY = """%(at_most)s::integer + {system} <= coalesce((
  SELECT n_ctx - n_ctx / {room} FROM ({smallest}) smallest), 2147483647)""".format(
    system=counting.AT_MOST.format(text="place.system_prompt"), room=window.ROOM,
    smallest=_SMALLEST.format(model="place.model"),
)  # fmt: skip

_SAID = (
    "Too long for the model: {it} {tokens:,} of {n_ctx:,} tokens, and the answer needs room too. "
    "Shorten it, or send it in parts."
)
_MORE = (
    "There is no room to go on: {it} {tokens:,} of {n_ctx:,} tokens. Ask for what is missing in a new message, "
    "or begin a new chat."
)
_SYSTEM = (
    "The system prompt takes {tokens:,} of {n_ctx:,} tokens: it may take {most:,}, so that messages and answers find "
    "room beside it."
)

Messages = Sequence[dict[str, str]]


@dataclass(frozen=True, slots=True)
class _Place:
    """The smallest slot that may be given."""

    server: int
    n_ctx: int

    def tokens_beyond(self, most: int, messages: Messages, params: Mapping[str, Any]) -> int | None:
        """Of a prompt that has more than `most` tokens, how many; None of any other, and where nobody tells."""
        if _fit(messages, most):
            return None
        server = servers.get(self.server)
        client = servers.client_of(server)
        try:
            sent = control_tokens.of_process(client, (server.boot, server.boot_at)).neutral(messages)
            tokens = counting.exactly(client, asking.prompt(sent, asking.decided(params, server.switches)))
        except ServerError:
            return None
        return tokens if tokens > most else None


def check_message(person: int, conversation: UUID, client_id: UUID, words: str) -> None:
    """Raises ContextExceeded if `words` are too long to be answered; not for what was sent before and is stored."""
    if len(words) > text.LONGEST_MESSAGE:
        return  # that has an error of its own
    turn = [{"role": "user", "content": text.clean(words)}]
    _check(person, conversation, client_id, turn, "this message takes", _SAID)


def check_again(person: int, question: Message, client_id: UUID) -> None:
    """The same of a message that is to be answered once more."""
    check_message(person, question.conversation_id, client_id, question.text)


def check_more(person: int, generation: UUID, client_id: UUID) -> None:
    """Raises ContextExceeded if an answer leaves no room to go on, even alone with its question; NotFound."""
    answer = access.generation(person, generation).message
    said = history.said(answer.conversation_id, answer.pk)
    turn = history.sent([one for one in said if one.id in (answer.pk, answer.parent_id)], "")
    _check(person, answer.conversation_id, client_id, turn, "this answer and its question take", _MORE)


def context(model: str) -> int | None:
    """Model tokens of the smallest slot that a conversation with `model` may be given; None while there is none."""
    found = statements.row(_OF_MODEL, {"model": model})
    return found[1] if found else None


def at_most(words: str) -> int:
    """Parameter of SURELY: more model tokens than `words` have as the first message of a prompt, with its system prompt
    empty.
    """
    return counting.ONCE + counting.at_most(({"role": "system", "content": ""}, {"role": "user", "content": words}))


def why_not_system_prompt(system_prompt: str, model: str) -> str | None:
    """A sentence if it leaves too little of the context of `model` (empty: of any) for what is to be said."""
    found = statements.row(_OF_MODEL, {"model": model}) if system_prompt else None
    if found is None:
        return None
    place = _Place(*found)
    most = place.n_ctx - place.n_ctx // window.RESERVE
    tokens = place.tokens_beyond(most, [{"role": "system", "content": system_prompt}], {})
    return _SYSTEM.format(tokens=tokens, n_ctx=place.n_ctx, most=most) if tokens else None


def _fit(messages: Messages, most: int) -> bool:
    return counting.ONCE + counting.at_most(messages) <= most


def _check(person: int, conversation: UUID, client_id: UUID, turn: Messages, it: str, sentence: str) -> None:
    found = statements.row(_OF_CONVERSATION, {"conversation": conversation, "person": person})
    if found is None:
        return  # whoever begins the turn says what is wrong, or it waits for a server
    place, params = _Place(*found[:2]), json.loads(found[2])
    system_prompt = placeholders.expanded(*found[3:])
    system = [{"role": "system", "content": system_prompt}] if system_prompt else []
    most = place.n_ctx - window.room(asking.most(params), place.n_ctx)
    tokens = place.tokens_beyond(most, [*system, *turn], params)
    if tokens is None or Generation.objects.filter(owner=person, client_id=client_id).exists():
        return
    about = f"with the system prompt {it}" if system else it
    said = sentence.format(it=about, tokens=tokens, n_ctx=place.n_ctx)
    raise errors.ContextExceeded(said, prompt_tokens=tokens, n_ctx=place.n_ctx)
