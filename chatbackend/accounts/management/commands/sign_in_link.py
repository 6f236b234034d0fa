from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from chatbackend.accounts import links, sign_in_links
from chatbackend.accounts.models import User


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
        for address in links.everywhere(links.sign_in_path(sign_in_links.create(person))):
            self.stdout.write(address)
