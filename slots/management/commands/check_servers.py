import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError
from django.utils import timezone

from slots import checking, servers
from slots.checking import Report
from slots.models import Server
from slots.servers import Address

EXIT_CODES = """exit code, of the worst server: 0 full, 1 no parking, 2 one at a time, 3 unusable, 4 not known (in use
while it was to be tried, only looked at, or not yet tried by a worker)"""


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

    def handle(self, *args: Any, **options: Any) -> None:
        trying = not options["no_probe"]
        if options["urls"]:
            reports = [checking.inspect(_address(url), self._tell, trying=trying) for url in options["urls"]]
        else:
            reports = _stored()
        self.stdout.write(checking.text(reports))
        sys.exit(max(report.exit_code for report in reports))

    def _tell(self, sentence: str) -> None:
        self.stdout.write(sentence)
        self.stdout.flush()


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
