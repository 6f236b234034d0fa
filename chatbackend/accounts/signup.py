"""The further field of the sign-up body."""

from django import forms
from django.conf import settings
from django.http import HttpRequest

from chatbackend.accounts import invites
from chatbackend.accounts.models import User


class SignupForm(forms.Form):
    """allauth builds its sign-up on top of this one (ACCOUNT_SIGNUP_FORM_CLASS)."""

    invite = forms.CharField(required=False, max_length=100)

    def clean_invite(self) -> str:
        """Tell early what is wrong with the code; only `Adapter.save_user` decides, once and for one person."""
        code = str(self.cleaned_data["invite"]).strip()
        if settings.SIGNUP == "invite":
            try:
                invites.check(code)
            except invites.Refused as refused:
                raise forms.ValidationError(str(refused), code=refused.code) from refused
        return code

    def signup(self, request: HttpRequest, user: User) -> None:
        """Nothing to do here: the adapter has saved the person and used up the invitation together."""
