"""The first administrator, without whom nobody could invite anybody."""

import secrets

from django.contrib.auth import get_user_model

from chatbackend.embedded.parts import CannotStart


def ensure_first_admin(username: str, password: str) -> str | None:
    """Make the administrator unless there is one. Returns the password when it was generated ("" asks for that)."""
    people = get_user_model()._default_manager
    if people.filter(is_superuser=True).exists():
        return None
    if people.filter(username=username).exists():
        raise CannotStart(f"there is no administrator, and {username} is somebody's account: set ADMIN_USERNAME")
    chosen = password or secrets.token_urlsafe(12)
    people.create_superuser(username=username, email="", password=chosen)
    return None if password else chosen
