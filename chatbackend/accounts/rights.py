"""What a member of staff may be allowed, in words; administrators may do everything."""

from collections.abc import Iterable

from django.contrib.auth.models import Permission
from django.db.models import Q

from chatbackend.accounts.models import User

RIGHTS = {
    "slots.view_server": "See servers",
    "slots.add_server": "Add servers",
    "slots.change_server": "Look at, drain and retire servers",
    "slots.view_slot": "See slots and leases",
    "slots.evict_slot": "Evict leases",
    "slots.view_pastlease": "See the history of leases",
    "slots.view_park": "See which conversations are parked in files",
    "accounts.view_user": "See people",
    "accounts.add_user": "Add people",
    "accounts.change_user": "Disable people and make password-reset links",
    "accounts.delete_user": "Delete people with their conversations",
    "accounts.view_invite": "See invitations",
    "accounts.add_invite": "Invite",
    "accounts.change_invite": "Revoke invitations",
    "conversations.view_conversation": "See conversations, without their text",
    "conversations.read_text": "Read people's conversations (each time is recorded)",
    "conversations.stop_generation": "Stop people's answers",
    "conversations.delete_conversation": "Delete conversations",
    "conversations.change_preset": "Offer presets of their own to everybody, and take such back",
    "admin.view_logentry": "See what administrators did",
}


class Refused(Exception):
    """Not with this person; the sentence says why."""


def of(person: User) -> list[str]:
    """Which of RIGHTS were given to `person`."""
    held = person.user_permissions.values_list("content_type__app_label", "codename")
    return [right for right in RIGHTS if tuple(right.split(".")) in set(held)]


def give(person: User, rights: Iterable[str]) -> None:
    """These of RIGHTS and no others."""
    wanted = Q(pk__in=[])
    for right in rights:
        app, codename = right.split(".")
        wanted |= Q(content_type__app_label=app, codename=codename)
    person.user_permissions.set(Permission.objects.filter(wanted))


def keep_an_administrator(person: User) -> None:
    """Raises Refused if nobody but `person` could administrate; in a transaction, so that two do not end each other."""
    others = User.objects.select_for_update(of=("self",), no_key=True).filter(is_superuser=True, is_active=True)
    if person.is_superuser and not [other for other in others.order_by("pk") if other.pk != person.pk]:
        raise Refused("This is the last administrator: make somebody else one first.")
