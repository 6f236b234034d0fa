"""People, the invitations by which they join, and links that sign in without a password."""

from collections.abc import Iterator

from django.contrib.auth.models import AbstractUser
from django.db import models
from django.db.models.functions import Lower, Now


class User(AbstractUser):
    """A person. Signs in with username and password; the e-mail address is optional."""

    sessions_ended = models.PositiveIntegerField(default=0, db_default=0, editable=False)  # how often, all at once

    class Meta(AbstractUser.Meta):
        verbose_name, verbose_name_plural = "person", "people"
        # Nobody may pass for another by a capital letter; sign-up checks it, two at once only this does.
        constraints = [models.UniqueConstraint(Lower("username"), name="user_name_once")]

    def get_session_auth_hash(self) -> str:
        """What a session must carry to count: it changes with the password, and when all sessions are ended."""
        return self._of_this_era(super().get_session_auth_hash())

    def get_session_auth_fallback_hash(self) -> Iterator[str]:
        return map(self._of_this_era, super().get_session_auth_fallback_hash())

    def _of_this_era(self, digest: str) -> str:
        return f"{digest}.{self.sessions_ended}" if self.sessions_ended else digest


class Invite(models.Model):
    """Lets one person sign up. The code itself is shown once and stored nowhere."""

    digest = models.BinaryField(unique=True)  # SHA-256; the code has 128 random bits, so no salt is needed
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)
    used_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")

    class Meta:
        verbose_name = "invitation"
        default_permissions = ("add", "change", "view")

    def __str__(self) -> str:
        return f"invitation {self.pk}"


class SignInLink(models.Model):
    """Signs its person in once. The token itself is shown once and stored nowhere."""

    digest = models.BinaryField(unique=True)  # SHA-256 of 256 random bits
    person = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"sign-in link {self.pk}"
