"""Caches that come back: saved to a file when a slot changes hands, restored when their holder returns.

A file is trusted step by step. It counts when the server said that it saved as many tokens as the slot had been seen to
hold; it is read if its server's fingerprint is still the one it was written under; it is of use when the next request
finds them again. Where two of the last three were of no use, nothing is parked any more as long as that process lives.

Nothing here may cost more than time: whatever goes wrong, the file is not read again, and history is. No transaction is
open while a server is waited for. `stored` does a step that needs Postgres, as often as its caller likes.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from django.conf import settings
from django.db import connection, transaction

from slots import grades, leases, parked
from slots.client import LlamaServer, ServerError, ServerFailed, StreamBroken
from slots.grants import Former, Grant
from slots.models import Server, Slot
from slots.parked import File
from slots.renewal import Held

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

WORTH = 32  # tokens; fewer are read again sooner than they are restored
LAST, BAD = 3, 2  # so many of the last so many of no use: it does not work there
AHEAD_SECONDS = 60.0  # for a save in front of nobody: a gigabyte, on a slow disk
WEIGHT = 0.2  # of the newest figure in a moving average


class Stored(Protocol):
    def __call__(self, step: Callable[[], Result]) -> Result: ...


@dataclass(frozen=True, slots=True)
class Learned:
    """What one save or restore told of its server; `of_use` None: nothing, either way."""

    save_ms: float | None = None
    restore_ms: float | None = None
    token_bytes: float | None = None
    of_use: bool | None = None


def at_once(step: Callable[[], Result]) -> Result:
    """Do `step` now or never."""
    try:
        return step()
    finally:
        connection.close()


def works(server: Server) -> bool:
    """Whether anything is parked on `server`, as its row was read."""
    return server.parking == Server.Parking.EFFECTIVE and settings.LLAMA_PARKED > 0


def park(
    client: LlamaServer, held: Held, former: Former, stored: Stored = at_once, *, ahead: bool = False
) -> Learned | None:
    """Save what the slot of `held` holds of `former`, just seen quiet and as it was recorded.

    None where nothing was sent, as its file is as new, or it is not worth it. Raises LeaseLost.
    """
    if former.kv_tokens < WORTH or former.kv_outline is None:
        return None
    stored(held.confirm)
    file = stored(lambda: parked.begin(held.grant, former.holder, former.used_at, ahead=ahead))
    if file is None:
        return None
    began = time.monotonic()
    try:
        tokens, size = client.saved(held.grant.id_slot, file.name, AHEAD_SECONDS if ahead else None)
    except ServerError as error:
        return _not_done(held.grant, file, error, stored)
    held.moved()
    ms = (time.monotonic() - began) * 1000
    if tokens != former.kv_tokens:
        logger.error("slot=%s saved %s tokens, not %s: not kept", held.grant.slot, tokens, former.kv_tokens)
    elif stored(lambda: parked.keep(held.grant, file, tokens, size, former.kv_outline)):
        logger.info("slot=%s parked holder=%s tokens=%s ms=%.0f", held.grant.slot, former.holder, tokens, ms)
        return Learned(save_ms=ms, token_bytes=size / tokens)
    stored(lambda: parked.spoil(file))
    return Learned()


def _not_done(grant: Grant, file: File, error: ServerError, stored: Stored) -> Learned:
    """What hangs is held against the server: everybody who comes would wait for it.

    Not while others are answered there: it waits for the batch that is being read, some seconds on a slow machine.
    """
    logger.warning("slot=%s file=%s was not saved or restored: %s", grant.slot, file.name, error)
    stored(lambda: parked.spoil(file))
    hangs = isinstance(error, StreamBroken) and not stored(lambda: _others_run(grant))
    return Learned(of_use=False if hangs else None)


def _others_run(grant: Grant) -> bool:
    return Slot.objects.filter(server=grant.server, phase=Slot.Phase.BUSY).exclude(pk=grant.slot).exists()


def restore(client: LlamaServer, held: Held, file: File, stored: Stored = at_once) -> Learned | None:
    """Put `file` into the slot of `held`, and record that its cache is its holder's now.

    None, or no `restore_ms`, when it did not work: the slot is empty, or holds what is not known, and the file is not
    read again. One that hangs is held against the server, as with `park`. Raises LeaseLost.
    """
    stored(held.confirm)
    began = time.monotonic()
    try:
        tokens = client.act(held.grant.id_slot, "restore", file.name)
    except ServerError as error:
        told = _not_done(held.grant, file, error, stored)
        return told if isinstance(error, StreamBroken) else None
    held.moved()
    ms = (time.monotonic() - began) * 1000
    if tokens != file.tokens:
        logger.error("slot=%s restored %s tokens of %s, not %s", held.grant.slot, tokens, file.name, file.tokens)
        stored(lambda: parked.spoil(file))
        return None
    if not stored(lambda: parked.unchanged(file)):
        logger.warning("slot=%s: %s was written over while it was read", held.grant.slot, file.name)
        return None
    stored(lambda: leases.filled(held.grant, tokens, file.outline))
    logger.info("slot=%s restored tokens=%s ms=%.0f", held.grant.slot, tokens, ms)
    return Learned(restore_ms=ms)


def wipe(client: LlamaServer, held: Held, stored: Stored = at_once) -> int:
    """Overwrite every file that is due with nothing, from the slot of `held`, which is nobody's; how many that were.

    What is left of them on the disk is not zeroed: llama-server writes a shorter file over them, no more. Raises
    ServerError and LeaseLost; what is not confirmed stays due.
    """
    stored(held.confirm)
    client.act(held.grant.id_slot, "erase", "")
    count = 0
    while file := stored(lambda: parked.begin_wipe(held.grant)):
        _overwrite(client, held, file, stored)
        count += 1
    return count


def _overwrite(client: LlamaServer, held: Held, file: File, stored: Stored) -> None:
    confirmed = False
    try:
        stored(held.confirm)
        tokens, _ = client.saved(held.grant.id_slot, file.name)
        held.moved()
        confirmed = not tokens and stored(lambda: parked.wiped(held.grant, file))
    finally:
        if not confirmed:
            stored(lambda: parked.spoil(file))
    if not confirmed:
        raise ServerFailed(f"Slot {held.grant.id_slot} was not empty: {file.name} is still to be overwritten.")


def learn(server: int, boot: str | None, told: Learned) -> None:
    """Keep what was learned of the process `boot` of a server; where it shows that parking is of no use, end it."""
    with transaction.atomic():
        rows = Server.objects.select_for_update(of=("self",), no_key=True)
        row = rows.filter(pk=server, boot=boot, parking=Server.Parking.EFFECTIVE).first()
        if row is None:
            return
        proved = [*row.parking_proved, *([] if told.of_use is None else [told.of_use])][-LAST:]
        Server.objects.filter(pk=server).update(
            save_ms=_average(row.save_ms, told.save_ms),
            restore_ms=_average(row.restore_ms, told.restore_ms),
            token_bytes=_average(row.token_bytes, told.token_bytes),
            parking_proved=proved,
        )
        if proved.count(False) >= BAD:
            _end(row)


def _end(server: Server) -> None:
    """For this process: its files are kept no longer, and whoever loses a slot there is read again."""
    found = grades.without_parking()
    Server.objects.filter(pk=server.pk).update(
        parking=Server.Parking.INEFFECTIVE, grade=found.grade, costs=found.costs, cure=found.cure
    )
    parked.useless(server.pk)
    logger.error("server=%s: nothing is parked there any more. %s", server.url, found.costs)


def _average(before: float | None, newest: float | None) -> float | None:
    if before is None or newest is None:
        return before if newest is None else newest
    return before + WEIGHT * (newest - before)
