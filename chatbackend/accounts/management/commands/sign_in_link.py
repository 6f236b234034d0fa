from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from chatbackend.accounts import links, sign_in_links
from chatbackend.accounts.models import User
from chatbackend.embedded.address import addresses


class Command(BaseCommand):
    help = (
        f"Print a link that signs one person in, once, within {sign_in_links.MINUTES} minutes: for who is locked out."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("username")

    def handle(self, *args: Any, **options: Any) -> None:
        name = options["username"]
        person = User.objects.filter(username=name).first()
        if person is None:
            raise CommandError(f"There is nobody called {name}.")
        if not person.is_active:
            raise CommandError(f"The account of {name} is disabled.")
        path = links.sign_in_path(sign_in_links.create(person))
        if not settings.PORT:  # taken by `up` when it started, known to it alone
            self.stdout.write(f"{path}  (after the site's address)")
        for address in addresses(settings.HOST, settings.PORT) if settings.PORT else ():
            self.stdout.write(address.rstrip("/") + path)
