"""Things in a named state. Alice, Bob and Charlie never share anything."""

import functools
import uuid
from datetime import timedelta

from django.contrib.auth.hashers import make_password
from django.db.models import F, Sum
from django.db.models.expressions import Combinable
from django.db.models.functions import Length, Now

from chatbackend.accounts.models import User
from conversations import sending, turns
from conversations.claims import Claim
from conversations.models import Chunk, Conversation, Message
from conversations.sending import Turn
from slots import leases
from slots.leases import Grant
from slots.models import Park, Server, Slot

WORKER = uuid.UUID(int=1)
OTHER_WORKER = uuid.UUID(int=2)
PASSWORD = "correct horse battery"


def person(name: str = "alice") -> User:
    found = User.objects.filter(username=name).first()
    return found or User.objects.create(username=name, password=_hashed(PASSWORD))


@functools.cache
def _hashed(password: str) -> str:
    """Hashing takes half a second, which a test of passwords needs once."""
    return make_password(password)


def conversation(owner: User | None = None, **fields: object) -> Conversation:
    return Conversation.objects.create(owner=owner or person(), **fields)


def sent(
    where: Conversation | None = None, words: str = "How do steam engines work?", client_id: uuid.UUID | None = None
) -> Turn:
    """A message just sent to `where` (a new conversation of Alice's by default); its generation is queued."""
    where = where or conversation()
    return sending.send(where.owner_id, where.pk, client_id or uuid.uuid4(), words, None, to_leaf=True)


def server(slots: int = 2, url: str = "http://llama.test:8080", model: str = "smollm2") -> Server:
    """A ready server whose process was seen, with empty slots."""
    made = Server.objects.create(
        url=url, model=model, state=Server.State.READY, boot=f"<{url}>", total_slots=slots, n_ctx=2048,
        grade=Server.Grade.FULL,
    )  # fmt: skip
    leases.empty_server(made.pk, slots)
    return made


def leased(on: Server, holder: uuid.UUID | None = None, worker: uuid.UUID = WORKER) -> Grant:
    """A busy lease on one of `on`'s slots."""
    grant = leases.acquire(holder or uuid.uuid4(), worker, [on.pk])
    assert grant is not None
    return grant


def idle(on: Server, holder: uuid.UUID | None = None, kv_tokens: int = 100, kv_task: int = 7) -> Grant:
    """A lease between two turns, its cache known."""
    grant = leased(on, holder)
    leases.release(grant, kv_tokens, kv_task)
    return grant


def parked(on: Server, holder: uuid.UUID, number: int = 0, outline: object = None) -> Park:
    """A file on `on` with the cache of `holder`."""
    return Park.objects.create(
        server=on, number=number, name=f"1a2b3c4d-{on.pk}-{number}", state=Park.State.READY, holder=holder, tokens=120,
        bytes=2_767_496, outline=outline or {"prompt": [], "answer": None}, fingerprint=on.fingerprint, saved_at=Now(),
    )  # fmt: skip


def running(where: Conversation | None = None, on: Server | None = None, worker: uuid.UUID = WORKER) -> Claim:
    """A generation that `worker` has just claimed."""
    on = on or server()
    sent(where)
    claimed = turns.claim(worker, [on.pk])
    assert claimed is not None
    return claimed


def wrote(claim: Claim, *pieces: str, part: int = 0) -> None:
    """Chunks of a running generation, as the writer commits them; publishes nothing."""
    before = Chunk.objects.filter(generation=claim.generation)
    seq = before.count()
    message = Message.objects.get(pk=claim.message)
    start = len((message.text, message.reasoning)[part])  # of an answer that is gone on with
    start += before.filter(part=part).aggregate(sum=Sum(Length("text")))["sum"] or 0
    for piece in pieces:
        seq += 1
        Chunk.objects.create(
            generation_id=claim.generation, seq=seq, part=part, start=start, text=piece, tokens=1,
            stream_id=claim.grant.stream_id, stream_bytes=100 * seq,
        )  # fmt: skip
        start += len(piece)


def age(slot: int, seconds: float) -> None:
    """Move a slot's lease into the past by `seconds`, as if time had gone by."""
    span = timedelta(seconds=seconds)
    Slot.objects.filter(pk=slot).update(
        expires_at=F("expires_at") - span, since=F("since") - span, used_at=F("used_at") - span
    )


def ago(seconds: float) -> Combinable:
    """A moment so long before now, by Postgres's clock."""
    return Now() - timedelta(seconds=seconds)


def expire(slot: int, ago: float = 0.001) -> None:
    """Let a slot's lease have run out `ago` seconds before now."""
    Slot.objects.filter(pk=slot).update(expires_at=Now() - timedelta(seconds=ago))
