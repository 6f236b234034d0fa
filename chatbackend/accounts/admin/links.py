"""Pages that show a secret link once, for whoever made it to hand on."""

from django.conf import settings
from django.contrib import messages
from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from chatbackend.accounts import invites, links
from chatbackend.accounts.models import User

RESET = (
    "Whoever opens this link sets a new password for {name}. It works once, for {days} days, and until the next "
    "sign-in. This site sends no e-mail: hand it on yourself."
)
INVITED = "Whoever opens this link can make an account here. It works once, for {days} days: hand it on yourself."
CLOSED = "Signing up is closed here (SIGNUP=closed): add the person instead."


def show(request: HttpRequest, site: AdminSite, title: str, link: str, sentence: str, back: str) -> HttpResponse:
    """The link, this one time; nothing keeps it."""
    about = {**site.each_context(request), "title": title, "link": link, "sentence": sentence, "back": back}
    response = TemplateResponse(request, "admin/link.html", about)
    response.headers["Referrer-Policy"] = "no-referrer"
    return response


def for_password(request: HttpRequest, site: AdminSite, person: User) -> HttpResponse:
    link = request.build_absolute_uri(links.reset_path(person))
    sentence = RESET.format(name=person.username, days=settings.PASSWORD_RESET_TIMEOUT // 86_400)
    back = reverse("admin:accounts_user_change", args=[person.pk])
    return show(request, site, f"Password-reset link for {person.username}", link, sentence, back)


def for_newcomer(request: HttpRequest, site: AdminSite, back: str) -> HttpResponse:
    """Make an invitation, for `back` is where the button was."""
    if not request.user.has_perm("accounts.add_invite"):
        raise PermissionDenied
    if settings.SIGNUP == "closed" or request.method != "POST":
        if request.method == "POST":
            messages.error(request, CLOSED)
        return HttpResponseRedirect(back)
    assert isinstance(request.user, User)
    link = request.build_absolute_uri(links.invite_path(invites.create(request.user)))
    return show(request, site, "Invitation", link, INVITED.format(days=invites.DAYS), back)
