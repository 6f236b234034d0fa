"""Who may sign up, and what this site does not do: it sends no mail."""

from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.core.exceptions import ImmediateHttpResponse
from django.conf import settings
from django.db import IntegrityError, transaction
from django.forms import Form
from django.http import HttpRequest, JsonResponse

from chatbackend.accounts import invites
from chatbackend.accounts.models import User

TAKEN = "A user with that username already exists."


class Refusal(ImmediateHttpResponse):  # type: ignore[misc]
    """A sign-up that failed at the last moment: `/_allauth/` answers with it, our pages catch it."""

    def __init__(self, param: str, code: str, message: str) -> None:
        self.param, self.code, self.message = param, code, message
        error = {"message": message, "code": code, "param": param}
        super().__init__(JsonResponse({"status": 400, "errors": [error]}, status=400))


class Adapter(DefaultAccountAdapter):  # type: ignore[misc]
    """allauth's account adapter (ACCOUNT_ADAPTER)."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return bool(settings.SIGNUP != "closed")

    def save_user(self, request: HttpRequest, user: User, form: Form, commit: bool = True) -> User:
        """The person and the spent invitation are one transaction: two sign-ups with one code make one account."""
        try:
            with transaction.atomic():
                if settings.SIGNUP != "invite":
                    return self._saved(request, user, form, commit)
                invite = invites.use(form.cleaned_data.get("invite", ""))
                person = self._saved(request, user, form, commit)
                invites.spend(invite, person)
                return person
        except invites.Refused as refused:
            raise Refusal("invite", refused.code, str(refused)) from refused
        except IntegrityError as error:
            # The same name, taken between the form's look and ours.
            raise Refusal("username", "username_taken", TAKEN) from error

    def _saved(self, request: HttpRequest, user: User, form: Form, commit: bool) -> User:
        person: User = super().save_user(request, user, form, commit)
        return person

    def add_message(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        """Nothing: that somebody has signed in is seen on the page that follows."""

    def send_mail(self, template_prefix: str, email: str, context: dict[str, Any]) -> None:
        """No step of ours sends mail; a step of allauth that would must not pretend it did."""
        raise ImmediateHttpResponse(JsonResponse({"status": 501, "errors": [_NO_MAIL]}, status=501))


_NO_MAIL = {"code": "no_mail", "message": "This site sends no e-mail: ask whoever runs it."}
