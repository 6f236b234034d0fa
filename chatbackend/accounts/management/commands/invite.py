from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from chatbackend.accounts import invites, links
from chatbackend.accounts.models import User


class Command(BaseCommand):
    help = f"Print a link with which one person can sign up within {invites.DAYS} days."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--by", metavar="USERNAME", help="who invites")

    def handle(self, *args: Any, **options: Any) -> None:
        by = None
        if name := options["by"]:
            by = User.objects.filter(username=name).first()
            if by is None:
                raise CommandError(f"There is nobody called {name}.")
        for address in links.everywhere(links.invite_path(invites.create(by))):
            self.stdout.write(address)
