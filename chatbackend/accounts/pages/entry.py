"""How a page signs somebody in, where they go from there, and what pages about people never do."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from allauth.account.internal import flows
from allauth.account.models import Login
from allauth.core import ratelimit
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.utils.cache import add_never_cache_headers
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_http_methods

from chatbackend.accounts.models import User

DISABLED = "This account is disabled: ask whoever runs this site."
# Not "no-referrer": with it a form's POST says `Origin: null`, which the CSRF check refuses.
REFERRERS = "strict-origin"

View = Callable[..., HttpResponseBase]

page = require_http_methods(["GET", "HEAD", "POST"])


def private(view: View) -> View:
    """Nothing of the page is kept by a cache, and its address, which may be a secret, goes into no Referer."""

    @wraps(view)
    def wrapped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        response = view(request, *args, **kwargs)
        add_never_cache_headers(response)
        response["Referrer-Policy"] = REFERRERS
        return response

    return wrapped


def limited(action: str) -> Callable[[View], View]:
    """Posting counts for allauth's limit on `action`; beyond it the answer is handler429's."""

    def decorator(view: View) -> View:
        @wraps(view)
        def wrapped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            refusal: HttpResponse | None = ratelimit.consume_or_429(request, action=action)
            return refusal or view(request, *args, **kwargs)

        return wrapped

    return decorator


def next_of(request: HttpRequest, otherwise: str = "/") -> str:
    """The address in `next` if it is one of this site, else `otherwise`."""
    wished = request.POST.get("next") or request.GET.get("next") or ""
    own = url_has_allowed_host_and_scheme(wished, {request.get_host()}, require_https=request.is_secure())
    return wished if own else otherwise


def let_in(request: HttpRequest, person: User, method: str, after: str = "/") -> HttpResponse:
    """Sign `person` in under a new session key, and whoever was signed in here out; go to `after`."""
    if not person.is_active:
        return sentence(request, "You cannot sign in", DISABLED, 403)
    if request.user.is_authenticated and request.user != person:
        flows.logout.logout(request, show_message=False)
    flows.login.record_authentication(request, person, method=method)
    return flows.login.perform_login(request, Login(user=person, redirect_url=after))  # type: ignore[no-any-return]


def sentence(request: HttpRequest, heading: str, detail: str, status: int, cure: str = "") -> HttpResponse:
    """A page that says what is so and, in `cure`, what to do now."""
    said = {"heading": heading, "detail": detail, "cure": cure}
    return render(request, "registration/sentence.html", said, status=status)
