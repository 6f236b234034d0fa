"""Signing up, by invitation or freely, and inviting others."""

from allauth.account.adapter import get_adapter
from allauth.account.internal import flows
from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.request import split_domain_port
from django.shortcuts import redirect, render
from django.views.decorators.debug import sensitive_post_parameters

from chatbackend import failures
from chatbackend.accounts import invites
from chatbackend.accounts.adapter import Refusal
from chatbackend.accounts.answers import SIGNUP_CLOSED
from chatbackend.accounts.forms import SignUpForm
from chatbackend.accounts.links import invite_path
from chatbackend.accounts.models import User
from chatbackend.accounts.pages.entry import limited, next_of, page, private, sentence
from chatbackend.environment import is_loopback

CLOSED = ("signup_closed", "Signing up is closed here, so nobody can be invited: whoever runs this site adds people.")
ONLY_HERE = "You are on the machine itself: on another device 127.0.0.1 and localhost mean that device. "


@private
@page
@sensitive_post_parameters("password1")
@limited("signup")
def sign_up(request: HttpRequest) -> HttpResponse:
    return _joined(request, code=None)


@private
@page
@sensitive_post_parameters("password1")
@limited("signup")
def join(request: HttpRequest, code: str) -> HttpResponse:
    """An invitation's link. Looking at it spends nothing."""
    if settings.SIGNUP == "open":
        return redirect("sign_up")
    return _joined(request, code)


@private
@page
def invite(request: HttpRequest) -> HttpResponse:
    """A new invitation's link: as JSON for the chat page, as a page for a form without scripts."""
    if not isinstance(request.user, User):
        return _sign_in_first(request)
    if settings.SIGNUP == "closed":
        return failures.answer(request, 403, *CLOSED)
    if request.method != "POST":
        return render(request, "registration/invite.html", {"days": invites.DAYS})
    try:
        code = invites.create_for(request.user)
    except invites.Refused as refused:
        return failures.answer(request, 429, refused.code, str(refused))
    link = request.build_absolute_uri(invite_path(code))
    made = {"link": link, "days": invites.DAYS, "hint": _hint(request)}
    return render(request, "registration/invite.html", made) if failures.wants_page(request) else JsonResponse(made)


def _sign_in_first(request: HttpRequest) -> HttpResponse:
    if failures.wants_page(request):
        return redirect_to_login(request.path)
    return failures.failure(401, "not_signed_in", "Sign in first.")


def _joined(request: HttpRequest, code: str | None) -> HttpResponse:
    if request.user.is_authenticated:
        return render(request, "registration/already_in.html")
    if not get_adapter().is_open_for_signup(request):
        _, closed = SIGNUP_CLOSED
        return sentence(request, "Signing up is closed", closed, 403)
    try:
        if code is not None:
            invites.check(code)
    except invites.Refused as refused:
        cure = "Perhaps a part of the link is missing." if refused.code == "invite_unknown" else ""
        return sentence(request, "This invitation does not work", str(refused), 410, cure)
    return _filled_in(request, code)


def _filled_in(request: HttpRequest, code: str | None) -> HttpResponse:
    form = SignUpForm.of(request, code)
    if form.is_bound and form.is_valid():
        try:
            person, answer = form.try_save(request)
        except Refusal as refusal:
            form.add_error(refusal.param, refusal.message)
        else:
            return answer or flows.signup.complete_signup(request, user=person, redirect_url=next_of(request))  # type: ignore[no-any-return]
    context = {"form": form, "next": next_of(request, ""), "code": code, "signup": settings.SIGNUP}
    return render(request, "registration/sign_up.html", context)


def _hint(request: HttpRequest) -> str:
    """What to know about a link that only this machine can open; empty for any other."""
    name, _ = split_domain_port(request.get_host())
    if not is_loopback(name.strip("[]")):
        return ""
    if is_loopback(settings.HOST):
        return f"{ONLY_HERE}Start with HOST=0.0.0.0 to let others in."
    return f"{ONLY_HERE}Open the site by its network address before you invite."
