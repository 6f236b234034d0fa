"""Addresses that carry a secret: whoever has one may join, set a password or sign in. Paths are for
`request.build_absolute_uri`; no log shows them (`WithoutSecrets`).
"""

import logging
import re
from typing import TYPE_CHECKING

from django.conf import settings
from django.contrib.auth.tokens import default_token_generator
from django.urls import reverse
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode

from chatbackend.embedded.address import addresses

if TYPE_CHECKING:  # logging is set up before there are models
    from chatbackend.accounts.models import User

SECRET = re.compile(r"/(enter|join|reset)/[^\s?'\"<>]+")


def invite_path(code: str) -> str:
    """Where an invited person signs up, once, within `invites.DAYS` days."""
    return reverse("join", args=[code])


def reset_path(person: "User") -> str:
    """Where `person` sets a new password, once, within settings.PASSWORD_RESET_TIMEOUT; void at their next sign-in."""
    uid = urlsafe_base64_encode(force_bytes(person.pk))
    return reverse("reset", args=[uid, default_token_generator.make_token(person)])


def sign_in_path(token: str) -> str:
    """Where a token of `sign_in_links.create` signs its person in, once, within `sign_in_links.MINUTES` minutes."""
    return reverse("enter", args=[token])


def everywhere(path: str) -> list[str]:
    """`path` at every address of the site, for printing."""
    if not settings.PORT:  # taken by `up` when it started, known to it alone
        return [f"{path}  (after the site's address)"]
    return [address.rstrip("/") + path for address in addresses(settings.HOST, settings.PORT)]


class WithoutSecrets(logging.Filter):
    """Cuts the secret out of every address that a line of the log mentions."""

    def filter(self, record: logging.LogRecord) -> bool:
        said = record.getMessage()
        if (cut := SECRET.sub(r"/\1/…", said)) != said:
            record.msg, record.args = cut, None
        return True
