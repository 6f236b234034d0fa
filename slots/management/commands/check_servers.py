import logging
import os
import sys
from dataclasses import dataclass
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError
from django.utils import timezone

from slots import checking, demand, probe, proof, servers, sizing
from slots.checking import Report
from slots.client import LlamaServer, ServerError
from slots.models import Server
from slots.servers import Address
from slots.sizing import Cache, Nonsense

EXIT_CODES = """exit code, of the worst server: 0 full, 1 no parking, 2 one at a time, 3 unusable, 4 not known (in use
while it was to be tried, only looked at, or not yet tried by a worker)"""


SIZING = ("people", "context", "memory", "model", "speed")
SPLICED = 2  # exit code: as for one at a time


class Command(BaseCommand):
    help = (
        "Say who answers at these addresses, what their slots are good for, what that costs and which command line "
        "would do better. Without an address: the registered servers, as the workers found them."
    )
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.epilog = EXIT_CODES
        parser.add_argument(
            "urls", nargs="*", metavar="URL",
            help="like http://:KEY@host:8080; needs no database, and sends a few dozen model tokens when it is idle",
        )  # fmt: skip
        parser.add_argument("--no-probe", action="store_true", help="only look: send nothing to any slot")
        parser.add_argument(
            "--prove", action="store_true",
            help="show on an idle server whether one conversation's text gets into another's answer; asks first",
        )  # fmt: skip
        sizing_group = parser.add_argument_group("how many slots, and which memory they take")
        sizing_group.add_argument("--people", metavar="20", help="who use it, at busy times")
        sizing_group.add_argument("--context", metavar="8192", help="model tokens of a conversation")
        sizing_group.add_argument("--memory", metavar="16G", help="what there is for the model and its slots")
        sizing_group.add_argument("--model", metavar="FILE", help="a GGUF file; by default the one that is served here")
        sizing_group.add_argument("--speed", metavar="20", help="model tokens per second of one answer")
        parser.add_argument("--yes", action="store_true", help="with --prove: do not ask")

    def handle(self, *args: Any, **options: Any) -> None:
        # A database that does not answer is told in a sentence.
        logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
        trying = not options["no_probe"]
        if options["prove"]:
            if not options["urls"] or options["no_probe"]:
                raise CommandError("--prove sends to a server: name its address, and leave --no-probe out.")
            codes = [self._prove(_address(url), sure=options["yes"]) for url in options["urls"]]
            sys.exit(max(codes))
        if any(options[name] is not None for name in SIZING):
            sys.exit(self._size(options))
        if options["urls"]:
            reports = [checking.inspect(_address(url), self._tell, trying=trying) for url in options["urls"]]
        else:
            reports = _stored()
        self.stdout.write(checking.text(reports))
        sys.exit(max(report.exit_code for report in reports))

    def _size(self, options: dict[str, Any]) -> int:
        """Print choices of slots; the exit code, of the named server's grade."""
        try:
            wish = _wish(options)
            cache, code = self._cache(options)
        except (Nonsense, ServerError) as error:
            raise CommandError(str(error), returncode=checking.NOT_TRIED) from error
        self._tell(sizing.text(demand.expected(wish.people, wish.speed), wish.context, cache, wish.memory))
        return code

    def _cache(self, options: dict[str, Any]) -> tuple[Cache, int]:
        """Of the named model, the named server's, or the one that is served here; and the exit code."""
        if options["model"]:
            return sizing.from_file(options["model"]), 0
        if not options["urls"]:
            return sizing.from_file(os.environ.get("LLAMA_MODEL") or _served_here()), 0
        address = _address(options["urls"][0])
        client = LlamaServer(address.url, address.api_key)
        states = client.slots()
        report = checking.inspect(address, self._tell, trying=not options["no_probe"])
        self._tell(f"{checking.text([report])}\n")
        if path := sizing.local_model(address.url, client.props()):
            return sizing.from_file(path), report.exit_code
        if report.verdict is None or report.verdict.grade != Server.Grade.FULL:
            raise Nonsense(sizing.NO_MODEL)
        tried = probe.plan(states)
        slots = [slot for slot in (tried.first, tried.second) if slot is not None]
        return sizing.from_slots(client, slots, checking.FILENAME), report.exit_code

    def _prove(self, address: Address, *, sure: bool) -> int:
        """Grade it and show what its slots do to each other; the exit code."""
        looked = checking.inspect(address, self._tell, trying=False)
        if looked.verdict:
            self._tell(checking.text([looked]))
            return looked.exit_code
        client = LlamaServer(address.url, address.api_key)
        try:
            self._may_prove(address.url, client, sure=sure)
            report = checking.inspect(address, lambda _: None, trying=True)
            shown = proof.show(client) if report.verdict else None
        except ServerError as error:
            raise CommandError(f"Not shown: {error}", returncode=checking.NOT_TRIED) from error
        except KeyboardInterrupt as interrupt:
            raise CommandError("Stopped: nothing of it runs on.", returncode=checking.NOT_TRIED) from interrupt
        if shown:
            ram_cache = report.verdict is not None and report.verdict.parks_in_ram
            self._tell(f"\n{proof.text(shown, ram_cache=ram_cache)}\n")
        self._tell(checking.text([report]))
        return max(report.exit_code, SPLICED if shown and shown.spliced else 0)

    def _may_prove(self, url: str, client: LlamaServer, *, sure: bool) -> None:
        """Raises CommandError if it is in service here, or whoever is asked does not want it."""
        try:
            if why_not := proof.in_service(url, client.props()):
                raise CommandError(why_not, returncode=checking.NOT_TRIED)
        except DatabaseError:
            self._tell("No database of this site answers: whether it gives leases on this server is not known.")
        self._tell(proof.announcement(url))
        if not sure and not _agreed():
            raise CommandError("Nothing was sent.", returncode=checking.NOT_TRIED)

    def _tell(self, sentence: str) -> None:
        self.stdout.write(sentence)
        self.stdout.flush()


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be sized."""

    people: int
    context: int
    memory: int | None
    speed: float | None


def _wish(options: dict[str, Any]) -> Wish:
    """Raises Nonsense."""
    if options["people"] is None or options["context"] is None:
        raise Nonsense("Sizing needs both: --people 20 --context 8192.")
    memory, speed = options["memory"], options["speed"]
    return Wish(
        sizing.whole("--people", options["people"], sizing.MOST_PEOPLE),
        sizing.whole("--context", options["context"], sizing.LARGEST),
        None if memory is None else sizing.size(memory),
        None if speed is None else float(sizing.whole("--speed", speed, sizing.FASTEST)),
    )


def _served_here() -> str:
    """The model file of a registered server on this machine. Raises Nonsense where there is none."""
    try:
        known = Server.objects.filter(trouble="").exclude(state=Server.State.RETIRED).order_by("pk")
        paths = (sizing.local_model(server.url, servers.client_of(server).props()) for server in known)
        path = next(filter(None, paths), None)
    except DatabaseError:
        path = None
    if path is None:
        raise Nonsense(sizing.NO_MODEL)
    return path


def _agreed() -> bool:
    try:
        return input("Go on? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:  # nobody is there to be asked
        return False


def _address(url: str) -> Address:
    try:
        return servers.address(url if "://" in url else f"http://{url}")
    except servers.NotAnAddress as error:
        raise CommandError(str(error), returncode=checking.NOT_TRIED) from error


def _stored() -> list[Report]:
    try:
        rows = list(Server.objects.exclude(state=Server.State.RETIRED).order_by("url"))
    except DatabaseError as error:
        first = str(error).partition("\n")[0]
        said = f"The database does not answer ({first}). Name an address to check a server without it."
        raise CommandError(said, returncode=checking.NOT_TRIED) from error
    if not rows:
        said = "No server is registered: workers register those of LLAMA_SERVERS. Name an address to check one."
        raise CommandError(said, returncode=checking.NOT_TRIED)
    now = timezone.now()
    return [checking.stored(row, now) for row in rows]
