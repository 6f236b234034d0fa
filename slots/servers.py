"""Which llama-servers there are and which process answers behind each address."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import IntegrityError, connection, transaction
from django.db.models import F, QuerySet
from django.db.models.functions import Coalesce, Now

from slots import leases, statements, strangers
from slots.capacity import why_unusable
from slots.client import LlamaServer, Props, ServerError, SlotState
from slots.models import Server, Slot

logger = logging.getLogger(__name__)

# What a probe found belongs to its process, and goes with it.
NOT_GRADED: dict[str, Any] = {
    "grade": "", "costs": "", "cure": "", "parks_in_ram": False, "graded_at": None,
    "probe": None, "probing_until": None, "probes": 0, "foreign_at": [], "foreign_task": None,
    "parking": Server.Parking.UNKNOWN, "parking_proved": [],
}  # fmt: skip
UNMARKED = "unmarked "
QUIET_SECONDS = 10.0  # a stop takes one batch: 0.03 s when decoding, 1.8 s measured in a prefill at -b 128
STOPPING_SECONDS = 1.0  # for one look at a slot that is being stopped; the next look comes a second later
FRESH_LOOKS = 5  # connections that must lead to one process
SEVERAL = "Several processes answer behind this address."
EACH_ITS_OWN = "Name each llama-server by its own address; a load balancer in front of them cannot keep slots apart."
TWICE = "Another configured address leads to the same process."
NAME_IT_ONCE = "Name each llama-server by one address."
READ_ENOUGH = 64  # tokens of a prompt; of fewer most of the time is no reading
QUIET_POLL = 0.003  # /slots costs about 1.4 ms and answers during a prefill

_COLUMNS = [field.attname for field in Server._meta.concrete_fields]
_GET = """
SELECT {columns} FROM slots_server v WHERE v.id = %(server)s""".format(
    columns=", ".join(f"v.{name}" for name in _COLUMNS)
)

_TAKES = """
SELECT EXISTS (SELECT FROM slots_server
               WHERE state = 'ready' AND trouble = '' AND (%(model)s = '' OR model = %(model)s))"""


@dataclass(frozen=True, slots=True)
class Address:
    """One entry of LLAMA_SERVERS."""

    url: str
    api_key: str


class SeveralProcesses(ServerError):
    """A load balancer, or a port that two processes share: a slot number means nothing there."""

    code = "several_processes"


class NotAnAddress(ValueError):
    """Not readable as a server's address; the sentence shows what would be, and no key."""


def configured(entries: Sequence[str]) -> list[Address]:
    """LLAMA_SERVERS, entries like `http://:KEY@host:8080`, read; raises ImproperlyConfigured for what is no address."""
    try:
        return [address(entry) for entry in entries]
    except NotAnAddress as error:
        raise ImproperlyConfigured(f"LLAMA_SERVERS: {error}") from error


def register() -> None:
    """Make the servers of LLAMA_SERVERS known; those listed before and no longer are retired."""
    listed = configured(settings.LLAMA_SERVERS)
    for address in listed:
        Server.objects.update_or_create(
            url=address.url, defaults={"api_key": address.api_key, "from_environment": True}
        )
    urls = [address.url for address in listed]
    gone = Server.objects.filter(from_environment=True).exclude(url__in=urls).exclude(state=Server.State.RETIRED)
    for server in gone:
        logger.warning("server=%s: retired, LLAMA_SERVERS of the newest worker does not list it", server.url)
    # Without its process: that may be listed under another name now.
    gone.update(state=Server.State.RETIRED, boot=None)
    Server.objects.filter(url__in=urls, state=Server.State.RETIRED).update(state=Server.State.UNKNOWN)


def get(pk: int) -> Server:
    """The server that a lease is on. As SQL: Django takes longer to write this query than Postgres to answer it."""
    return read(statements.rows(*select(pk)))


def select(pk: int) -> tuple[str, dict[str, Any]]:
    """A step of `statements.batch` whose rows `read` takes."""
    return _GET, {"server": pk}


def read(rows: Sequence[Sequence[Any]]) -> Server:
    """The server that was selected."""
    (row,) = rows
    return Server.from_db(connection.alias, _COLUMNS, row)


def noted_reading(server: int, tokens: int, ms: float) -> None:
    """Keep how fast it reads a prompt, as a turn of enough tokens has just shown: what losing a cache there costs."""
    if tokens >= READ_ENOUGH:
        Server.objects.filter(pk=server).update(read_ms=Coalesce(F("read_ms") * 0.8 + 0.2 * ms / tokens, ms / tokens))


def client_of(server: Server) -> LlamaServer:
    return LlamaServer(server.url, server.api_key)


def look(server: Server, doubted: bool = False) -> bool:
    """Ask who answers at `server` and record it; whether it answers rightly from here, now.

    One that is `doubted`, or that some worker found in trouble, must tell its slots as well: a llama-server that hangs
    may still answer the rest. A new process ends every lease there and empties every cache, once, whichever worker
    sees it first; then it waits to be probed, and nobody is leased a slot there before.
    """
    client = client_of(server)
    try:
        props = client.props()
        if _recorded(server) != _seen(server, props):
            check(client, props)
            _adopt(server, props)
            server.refresh_from_db()
        elif (doubted or server.trouble) and not props.sleeping:
            check(client, props)
        elif props.sleeping != server.asleep:
            _fell_asleep(server, props.sleeping)
    except SeveralProcesses as error:
        _abandon(server)
        _say(server, str(error), error.cure)
        return False
    except ServerError as error:
        _say(server, *strangers.explained(client, error))
        return False
    _say(server, "")
    return server.state not in (Server.State.UNKNOWN, Server.State.RETIRED)


def check(client: LlamaServer, props: Props) -> list[SlotState]:
    """Whether one llama-server answers there, whose slots are what it says; its slots. Raises ServerError."""
    if len({client.props(afresh=True).boot for _ in range(FRESH_LOOKS)}) > 1:
        raise SeveralProcesses(SEVERAL, cure=EACH_ITS_OWN)
    states = client.slots()
    found = sorted(state.id for state in states)
    if found != list(range(props.total_slots)):
        raise ServerError(f"/props names {props.total_slots} slots, /slots lists {found}.")
    contexts = {state.n_ctx for state in states} - {None}
    if contexts - {props.n_ctx}:
        said = ", ".join(str(n) for n in sorted(filter(None, contexts)))
        raise ServerError(f"/props names slots of {props.n_ctx} tokens, /slots lists {said}.")
    return states


def restarted(server: int) -> None:
    """A slot forgot what it had been asked: where the process has no marker, that is how a restart shows."""
    unmarked = Server.objects.filter(pk=server, boot__startswith=UNMARKED)
    if unmarked.exclude(state=Server.State.RETIRED).update(state=Server.State.UNKNOWN, boot=None, **NOT_GRADED):
        logger.warning("server=%s: its slots forgot what they held; it is looked at anew", server)


def wait_until_quiet(
    client: LlamaServer, id_slot: int, patience: float = QUIET_SECONDS, total: int | None = None
) -> tuple[int | None, int | None]:
    """Poll `/slots` until the slot is quiet; its `(tokens, task)` then.

    Raises ServerError after `patience` seconds, or when there are not `total` slots: an id beyond would wrap to
    another's slot.
    """
    deadline = time.monotonic() + patience
    while (state := _slot(client.slots(), id_slot, total)).busy:
        if time.monotonic() > deadline:
            raise ServerError(f"{client.url} does not stop slot {id_slot}.")
        time.sleep(QUIET_POLL)
    return state.tokens, state.task


def _slot(states: Sequence[SlotState], id_slot: int, total: int | None) -> SlotState:
    found = next((state for state in states if state.id == id_slot), None)
    if found is None or total not in (None, len(states)):
        raise ServerError(f"/slots lists {len(states)} slots, not {total or f'slot {id_slot}'}.")
    return found


def finish_stopping(slot: Slot) -> bool:
    """Stop what may still run on a slot that lost its lease; whether it is free again."""
    client, stream_id = client_of(slot.server), slot.stream_id
    if stream_id is None:
        return False
    try:
        client.stop(stream_id)
        wait_until_quiet(client, slot.id_slot, STOPPING_SECONDS)
    except ServerError as error:
        logger.warning("still stopping slot=%s stream=%s: %s", slot.pk, stream_id, error)
        return False
    return leases.stopped(slot.pk, stream_id)


def why_none(model: str = "") -> str | None:
    """A sentence why no server takes requests for `model` (empty: any); None when one does.

    A hint from whichever worker looked last.
    """
    if _one_takes(model):
        return None
    servers = list(Server.objects.exclude(state=Server.State.RETIRED))
    if not servers:
        return "No model server is configured: set LLAMA_SERVERS."
    if ready := [server for server in servers if why_unusable(server) is None]:
        names = ", ".join(sorted({server.model for server in ready}))
        return f"No server has the model {model!r} at the moment; served: {names}."
    return " ".join(filter(None, map(why_unusable, servers)))


def _one_takes(model: str) -> bool:
    """As `why_unusable` has it; in front of nearly every answer, so in as little time as it can be had."""
    return statements.row(_TAKES, {"model": model}) == (True,)


def switches(model: str = "") -> set[str]:
    """What the chat template of `model` (empty: of any) lets a request decide, where it is served."""
    return {name for row in _served().filter(**{"model": model} if model else {}) for name in row.switches}


def models() -> list[str]:
    """The names of the models that are served."""
    return sorted(set(_served().values_list("model", flat=True)))


def _served() -> QuerySet[Server]:
    return Server.objects.filter(state__in=[Server.State.PROBING, Server.State.READY, Server.State.DRAINING])


def address(entry: str) -> Address:
    """One address, read and written in one way. Raises NotAnAddress."""
    try:
        parts = urlsplit(entry)
    except ValueError as error:
        raise NotAnAddress(f"This is not an address like http://:KEY@host:8080 ({error}).") from error
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme not in ("http", "https") or not parts.hostname or (":" in parts.netloc[-6:] and port is None):
        shown = f"{parts.scheme}://…@{parts.netloc.rpartition('@')[2]}" if "@" in entry else entry
        raise NotAnAddress(f"{shown!r} is not an address like http://:KEY@host:8080.")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    path = parts.path.rstrip("/")
    return Address(f"{parts.scheme}://{host}{f':{port}' if port else ''}{path}", unquote(parts.password or ""))


def _boot(server: Server, props: Props) -> str:
    """Old servers have no marker; their restart shows only in what `/slots` says before the next request."""
    return props.boot or f"{UNMARKED}{server.url}"


def _seen(server: Server, props: Props) -> tuple[object, ...]:
    """What tells one process from the next. Without a marker a restart with other figures shows at least in those."""
    return _boot(server, props), props.total_slots, props.n_ctx, props.model, list(props.switches)


def _recorded(server: Server) -> tuple[object, ...]:
    return server.boot, server.total_slots, server.n_ctx, server.model, server.switches


def _adopt(server: Server, props: Props) -> None:
    """Compare-and-set on the process seen: of several workers one ends the leases of the process that is gone."""
    boot = _boot(server, props)
    with transaction.atomic():
        leases.end_if_paused()
        row = Server.objects.select_for_update(of=("self",), no_key=True).get(pk=server.pk)
        if row.state == Server.State.RETIRED:
            raise ServerError(f"{row.url} is retired.")
        if _recorded(row) == _seen(row, props):
            return
        if boot in row.past_boots:
            raise SeveralProcesses(SEVERAL, cure=EACH_ITS_OWN)
        try:
            with transaction.atomic():
                _record(row, boot, props)
        except IntegrityError as error:
            raise ServerError(TWICE, cure=NAME_IT_ONCE) from error
        leases.empty_server(row.pk, props.total_slots)
    logger.info("server=%s boot=%s slots=%s n_ctx=%s", server.url, boot, props.total_slots, props.n_ctx)


def _record(row: Server, boot: str, props: Props) -> None:
    draining = row.state == Server.State.DRAINING
    Server.objects.filter(pk=row.pk).update(
        boot=boot,
        boot_at=Now(),
        past_boots=[*row.past_boots[-18:], *(past for past in [row.boot] if past and past != boot)],
        model=props.model,
        switches=list(props.switches),
        total_slots=props.total_slots,
        n_ctx=props.n_ctx,
        asleep=False,
        state=Server.State.DRAINING if draining else Server.State.PROBING,
        **NOT_GRADED,
    )


def _abandon(server: Server) -> None:
    """Nothing that was known of slots there holds; a look that finds one process begins anew."""
    with transaction.atomic():
        leases.end_if_paused()
        known = Server.objects.filter(pk=server.pk, boot=server.boot, boot__isnull=False)
        if known.exclude(state=Server.State.RETIRED).update(state=Server.State.UNKNOWN, boot=None, **NOT_GRADED):
            leases.empty_server(server.pk, server.total_slots or 0)


def _fell_asleep(server: Server, asleep: bool) -> None:
    """A sleeping llama-server has freed every cache; nothing of ours runs there, or it would be awake."""
    with transaction.atomic():
        leases.end_if_paused()
        if Server.objects.filter(pk=server.pk, asleep=not asleep).update(asleep=asleep) and asleep:
            leases.forget_caches(server.pk)


def _say(server: Server, trouble: str, cure: str = "") -> None:
    if (server.trouble, server.trouble_cure) != (trouble, cure):
        Server.objects.filter(pk=server.pk).update(trouble=trouble, trouble_cure=cure)
        logger.log(logging.WARNING if trouble else logging.INFO, "server=%s: %s", server.url, trouble or "answers")
