"""One's own account: password and sessions; and the link by which an administrator lets somebody set a new password."""

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.decorators import login_required
from django.contrib.auth.forms import PasswordChangeForm, SetPasswordForm
from django.contrib.auth.views import PasswordChangeView, PasswordResetConfirmView
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse_lazy
from django.utils.decorators import method_decorator
from django.views.decorators.http import require_POST

from chatbackend.accounts import sessions
from chatbackend.accounts.forms import ChangePasswordForm, NewPasswordForm
from chatbackend.accounts.models import User
from chatbackend.accounts.pages.entry import let_in, limited, private, sentence


@method_decorator(private, name="dispatch")
@method_decorator(limited("change_password"), name="post")
class Account(PasswordChangeView):
    """Who I am. Changing the password ends all sessions but this one."""

    template_name = "registration/account.html"
    form_class = ChangePasswordForm
    success_url = reverse_lazy("account")

    def form_valid(self, form: PasswordChangeForm) -> HttpResponse:
        messages.success(self.request, "Your password is changed. You are signed out everywhere else.")
        return super().form_valid(form)

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        return super().get_context_data(signup=settings.SIGNUP, **context)


@private
@require_POST
@login_required
def sign_out_elsewhere(request: HttpRequest) -> HttpResponse:
    assert isinstance(request.user, User)
    sessions.end_all(request.user)
    update_session_auth_hash(request, request.user)
    messages.success(request, "You are signed out everywhere else.")
    return redirect("account")


@method_decorator(private, name="dispatch")
@method_decorator(limited("reset_password_from_key"), name="post")
class Reset(PasswordResetConfirmView):
    """A new password by a link from `links.reset_path`. It ends all sessions of the person."""

    template_name = "registration/reset.html"
    form_class = NewPasswordForm
    success_url = reverse_lazy("chat")

    def form_valid(self, form: "SetPasswordForm[User]") -> HttpResponse:
        super().form_valid(form)
        if self.request.user.is_authenticated and self.request.user != self.user:
            # An administrator who tries the link must not become the other person.
            done = f"{self.user} can sign in with the new password."
            return sentence(self.request, "The password is set", done, 200)
        return let_in(self.request, form.user, "password_reset")

    def render_to_response(self, context: dict[str, Any], **more: Any) -> HttpResponse:
        if context["validlink"]:
            return super().render_to_response(context, **more)
        cure = "Ask whoever runs this site for a new one."
        old = "It has been used, is too old, or a part of it is missing."
        return sentence(self.request, "This link does not work any more", old, 410, cure)
