"""Signing in by password or one-time link, and signing out."""

from allauth.account.internal import flows
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.debug import sensitive_post_parameters

from chatbackend import failures
from chatbackend.accounts import sign_in_links
from chatbackend.accounts.forms import SignInForm
from chatbackend.accounts.pages.entry import let_in, limited, next_of, page, private, sentence


@private
@page
@sensitive_post_parameters("password")
@limited("login")
def sign_in(request: HttpRequest) -> HttpResponse:
    after = next_of(request)
    if request.user.is_authenticated:
        return redirect(after)
    form = SignInForm(request.POST if request.method == "POST" else None, request=request)
    if form.is_bound and form.is_valid():
        return let_in(request, form.user, "password", after)
    context = {"form": form, "next": next_of(request, ""), "signup": settings.SIGNUP}
    return render(request, "registration/sign_in.html", context)


@private
@page
def sign_out(request: HttpRequest) -> HttpResponse:
    """Ends the session, and with it the websockets and the token that it is."""
    if request.method != "POST" and request.user.is_authenticated:
        return render(request, "registration/sign_out.html")
    flows.logout.logout(request, show_message=False)
    return redirect(next_of(request, reverse("sign_in")))


@private
@page
def enter(request: HttpRequest, token: str) -> HttpResponse:
    """Looking at the link spends nothing, as previews and scanners look at links too; the button does."""
    try:
        person = sign_in_links.check(token)
        if request.user == person:
            return redirect("/")
        if request.method != "POST":
            return render(request, "registration/enter.html", {"person": person})
        return let_in(request, sign_in_links.spend(token), "link")
    except sign_in_links.Refused as refused:
        cure = "Sign in with your password, or ask whoever runs this site for another link."
        return sentence(request, "This link signs nobody in", str(refused), 410, cure)


def csrf_failed(request: HttpRequest, reason: str = "") -> HttpResponse:
    """CSRF_FAILURE_VIEW. A page that was left open while another tab signed in or out has got what it asks for."""
    if request.path == reverse("sign_in") and request.user.is_authenticated:
        return redirect(next_of(request))
    if request.path == reverse("sign_out") and not request.user.is_authenticated:
        return redirect("sign_in")
    return failures.csrf(request, reason)
