"""The first administrator, without whom nobody could invite anybody."""

import secrets
from dataclasses import dataclass

from chatbackend.accounts import links, sign_in_links
from chatbackend.accounts.models import User
from chatbackend.embedded.parts import CannotStart


@dataclass(frozen=True)
class FirstAdmin:
    """An administrator just made. `generated` is the password that nobody knows yet, "" when one was given."""

    name: str
    generated: str


def ensure_first_admin(username: str, password: str) -> FirstAdmin | None:
    """Make the administrator unless there is one. The password is generated when none is given."""
    if User.objects.filter(is_superuser=True).exists():
        return None
    if User.objects.filter(username=username).exists():
        raise CannotStart(f"there is no administrator, and {username} is somebody's account: set ADMIN_USERNAME")
    generated = "" if password else secrets.token_urlsafe(12)
    User.objects.create_superuser(username=username, email="", password=password or generated)
    return FirstAdmin(username, generated)


def sign_in_path(username: str) -> str:
    """The path of a new one-time sign-in link."""
    return links.sign_in_path(sign_in_links.create(User.objects.get(username=username)))
