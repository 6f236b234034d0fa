"""The admin, as Django loads it."""

from importlib import import_module

from django.contrib.admin.apps import SimpleAdminConfig

OURS = ("chatbackend.accounts.admin", "slots.admin", "conversations.admin")


class AdminConfig(SimpleAdminConfig):
    """Django's admin with our site, and on it what is ours alone: of the packages' own pages none is of use here."""

    default_site = "chatbackend.admin.Site"


def load_admin() -> None:
    """Put our pages on the site. They need half of what a process imports, and only whoever serves them needs them."""
    for module in OURS:
        import_module(module)
