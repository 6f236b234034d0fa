"""The product's own settings, but for passwords: half a second of hashing each would be minutes of every run."""

from chatbackend.settings import *  # noqa: F403

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
