"""Clients of the admin with different rights, and a site with one of everything in it."""

import re
import uuid

from django.test import Client
from django.urls import reverse

from chatbackend.accounts import invites, rights
from chatbackend.accounts.models import User
from conversations.models import Conversation, Preset
from slots import parked
from slots.models import Server, Slot
from tests import factories

BACKEND = "allauth.account.auth_backends.AuthenticationBackend"
KEY = "sk-very-secret"
WORDS = ("How do steam engines work?", "The answer is text as well.", "A title is text", "A system prompt is text")


def signed_in(name: str, **fields: bool) -> Client:
    """A browser of this person's, who is what `fields` say."""
    person = factories.person(name)
    User.objects.filter(pk=person.pk).update(**fields)
    client = Client(headers={"Accept": "text/html"})
    client.force_login(User.objects.get(pk=person.pk), BACKEND)
    return client


def administrator(name: str = "admin") -> Client:
    return signed_in(name, is_staff=True, is_superuser=True)


def staff(*allowed: str) -> Client:
    """Sam of the staff, with these of `rights.RIGHTS` and no others."""
    client = signed_in("sam", is_staff=True)
    rights.give(User.objects.get(username="sam"), allowed)
    return client


def furnish() -> Conversation:
    """One of everything that the admin shows; the conversation has WORDS in it, one of the servers KEY."""
    where = factories.conversation(title=WORDS[2], system_prompt=WORDS[3])
    Preset.objects.create(owner=where.owner, name=WORDS[2], system_prompt=WORDS[3])
    server = factories.server(3)
    Server.objects.filter(pk=server.pk).update(api_key=KEY)
    claim = factories.running(where, server)
    factories.wrote(claim, WORDS[1])
    factories.sent(factories.conversation(factories.person("bob")))
    factories.idle(server)
    factories.idle(server, factories.conversation(factories.person("charlie")).pk)
    factories.parked(server, where.pk, 0, {"prompt": [[WORDS[0], 1]], "answer": WORDS[1]})
    gone = uuid.uuid4()
    factories.parked(server, gone, 1)
    parked.forget([gone])
    invites.create(factories.person("bob"))
    return where


def page(model: type, view: str, *args: object) -> str:
    """The address of `model`'s changelist, add, change, history or delete page, or of a view of ours."""
    opts = model._meta  # type: ignore[attr-defined]
    return reverse(f"admin:{opts.app_label}_{opts.model_name}_{view}", args=args)


def messages(client: Client, address: str) -> list[str]:
    """What the next page tells."""
    return re.findall(r'<li class="(?:success|warning|info|error)">(.*?)</li>', client.get(address).content.decode())


def lease_on(slot: int) -> str:
    """The lease that a slot has now, as pages name it."""
    row = Slot.objects.get(pk=slot)
    return f"{row.pk}:{row.fence}"
