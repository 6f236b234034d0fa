"""The forms of the pages: allauth's and Django's, with our labels and hints."""

from typing import Any, Self

from allauth.account.forms import LoginForm, SignupForm
from django import forms
from django.conf import settings
from django.contrib.auth.forms import PasswordChangeForm, SetPasswordForm
from django.http import HttpRequest

from chatbackend.accounts.models import User

NAME = {"autocomplete": "username", "autocapitalize": "none", "spellcheck": "false", "maxlength": 150}
GOOD_PASSWORD = "At least 8 characters, nothing common, and not like your name."  # noqa: S105


class SignInForm(LoginForm):  # type: ignore[misc]
    """Username and password, counted and checked as at `/_allauth/…/auth/login`; then `user` is set."""

    user: User

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["login"].widget = forms.TextInput(NAME)
        self.fields["password"].widget = forms.PasswordInput({"autocomplete": "current-password"})
        self.fields["password" if self.is_bound else "login"].widget.attrs["autofocus"] = True


class SignUpForm(SignupForm):  # type: ignore[misc]
    """The sign-up of `/_allauth/…/auth/signup`, its invitation code from the link or from a field."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        username, password, invite = (self.fields[name] for name in ("username", "password1", "invite"))
        username.widget = forms.TextInput(NAME)
        username.help_text = "Letters, digits and @ . + - _"
        password.widget = forms.PasswordInput({"autocomplete": "new-password"})
        password.help_text = GOOD_PASSWORD
        invite.label = "Invitation code"
        invite.widget = forms.TextInput({"autocomplete": "off", "autocapitalize": "none", "spellcheck": "false"})

    @classmethod
    def of(cls, request: HttpRequest, code: str | None) -> Self:
        """Bound to what was posted; `code` is the invitation's when its link was followed."""
        posted = request.POST.dict() if request.method == "POST" else None
        form = cls(posted if posted is None or code is None else posted | {"invite": code})
        first = "invite" if settings.SIGNUP == "invite" and code is None else "username"
        form.fields[first].widget.attrs["autofocus"] = True
        return form


class NewPasswordForm(SetPasswordForm):  # type: ignore[type-arg]  # generic for the checker alone
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["new_password1"].help_text = GOOD_PASSWORD
        self.fields["new_password1"].widget.attrs["autofocus"] = True
        self.fields["new_password2"].label = "The same again"
        self.fields["new_password2"].help_text = ""


class ChangePasswordForm(PasswordChangeForm):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["old_password"].label = "Password until now"
        self.fields["new_password1"].help_text = GOOD_PASSWORD
        self.fields["new_password2"].label = "The same again"
        self.fields["new_password2"].help_text = ""
        self.fields["old_password"].widget.attrs.pop("autofocus", None)
