"""Requests that are not ours, on servers that we use: noticed, counted and named; what they cost says `slots.grades`.

A turn notices one by its slot's figures, which are not those recorded when the slot was released. Beside that the
watch looks at `/slots` of servers in use for a slot that is busy without a lease. It leaves others alone: a look keeps
a server with sleep mode from falling asleep, and wakes one that is.
"""

import logging
from datetime import timedelta

from django.db import connection
from django.db.models import Q
from django.db.models.functions import Now

from slots import servers
from slots.client import ServerError
from slots.grants import Grant
from slots.models import Server, Slot

logger = logging.getLogger(__name__)

EVERY_SECONDS = 5.0  # between two looks at one server, whichever workers look
IN_USE_SECONDS = 60.0  # since a slot of it was last leased

# A server numbers its requests: whoever notices the same one again does not count it again.
_COUNT = """
UPDATE slots_server
SET foreign_count = foreign_count + 1, foreign_task = %(task)s,
    foreign_at = (array_append(foreign_at, statement_timestamp()))[greatest(1, cardinality(foreign_at) - 1):]
WHERE id = %(server)s AND (foreign_task IS NULL OR foreign_task < %(task)s)"""


def mismatch(grant: Grant, task: int | None) -> str:
    """The slot of `grant` does not show what was recorded on it, but the request `task` (None: it never had one).

    Returns the cause of the replay that follows. A process numbers its requests upwards, whatever their slot.
    """
    if task is None or task < (grant.kv_task or 0):
        servers.restarted(grant.server)
        return "server_restarted"
    if task == grant.kv_task:
        return "cache_lost"
    _noticed(grant.server, grant.id_slot, task)
    return "foreign"


def watch(server: Server) -> bool:
    """Look for slots that are busy without a lease, at most every EVERY_SECONDS and while the server is in use.

    False when the server does not tell its slots.
    """
    if server.asleep or not _due(server):
        return True
    before = _quiet(server)
    try:
        states = servers.client_of(server).slots()
    except ServerError as error:
        logger.warning("server=%s: its slots cannot be looked at: %s", server.url, error)
        return False
    busy = {state.id: state.task for state in states if state.busy and state.task is not None}
    after = _quiet(server) if busy else {}
    for id_slot, task in busy.items():
        if id_slot in before and before[id_slot] == after.get(id_slot):
            _noticed(server.pk, id_slot, task)
    return True


def _due(server: Server) -> bool:
    used = Q(phase=Slot.Phase.BUSY) | Q(used_at__gt=Now() - timedelta(seconds=IN_USE_SECONDS), phase=Slot.Phase.IDLE)
    if not Slot.objects.filter(used, server=server).exists():
        return False
    turn = Q(watched_at=None) | Q(watched_at__lt=Now() - timedelta(seconds=EVERY_SECONDS))
    return Server.objects.filter(turn, pk=server.pk).update(watched_at=Now()) > 0


def _quiet(server: Server) -> dict[int, int]:
    """The fences of slots that no request of ours can be running on."""
    quiet = Slot.objects.filter(server=server).exclude(phase=Slot.Phase.BUSY)
    return dict(quiet.exclude(condition=Slot.Condition.STOPPING).values_list("id_slot", "fence"))


def _noticed(server: int, id_slot: int, task: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_COUNT, {"server": server, "task": task})
        counted = cursor.rowcount > 0
    if counted:
        logger.warning("server=%s: slot %s was used by somebody else (task %s)", server, id_slot, task)
