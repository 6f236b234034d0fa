"""People, and the invitations by which they join."""

from django.contrib.auth.models import AbstractUser
from django.db import models
from django.db.models.functions import Lower, Now


class User(AbstractUser):
    """A person. Signs in with username and password; the e-mail address is optional."""

    class Meta(AbstractUser.Meta):
        # Nobody may pass for another by a capital letter; sign-up checks it, two at once only this does.
        constraints = [models.UniqueConstraint(Lower("username"), name="user_name_once")]


class Invite(models.Model):
    """Lets one person sign up. The code itself is shown once and stored nowhere."""

    digest = models.BinaryField(unique=True)  # SHA-256; the code has 128 random bits, so no salt is needed
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)
    used_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")

    def __str__(self) -> str:
        return f"invite {self.pk}"
