"""People."""

from django.contrib.auth.models import AbstractUser


class User(AbstractUser):
    """A person. Signs in with username and password; the e-mail address is optional."""
