"""What goes wrong outside the API's own views: for browsers a page, for the rest `{code, detail, retryable}`."""

import logging
import sys
from collections.abc import Callable
from typing import TypeVar

from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import render
from django.urls import Resolver404, resolve

from chatbackend.postgresql import AWAY

logger = logging.getLogger(__name__)

# Text that breaks off in the middle of a character: JSON can say it ("\ud800"), UTF-8 and Postgres cannot.
HALF_CHARACTER = "A text has half of a surrogate pair in it, which is no character."
UNAVAILABLE = "The database does not answer at the moment: try again in a few seconds."
Answer = TypeVar("Answer", bound=HttpResponseBase)

NOT_HERE = "There is nothing at this address."
FOR_PROGRAMS = ("/api/v1/", "/api/schema/", "/_allauth/", "/ws/", "/healthz", "/readyz")
HEADINGS = {
    400: "This request cannot be read",
    403: "You may not do this",
    404: "Nothing here",
    429: "Not so fast",
    503: "Back in a moment",
}


def failure(status: int, code: str, detail: str, retryable: bool = False) -> JsonResponse:
    """The body every error has."""
    return JsonResponse({"code": code, "detail": detail, "retryable": retryable}, status=status)


def logged(response: Answer) -> Answer:
    """A response of 500 or more that needs no further line in the log: Django would call it an error."""
    response._has_been_logged = True  # type: ignore[attr-defined]
    return response


def answer(request: HttpRequest, status: int, code: str, detail: str, retryable: bool = False) -> HttpResponse:
    """A page for whoever asked for one, with the sentence on it; the API's body for everybody else."""
    if not wants_page(request):
        return failure(status, code, detail, retryable)
    heading = HEADINGS.get(status, "Something went wrong")
    return render(request, "failure.html", {"heading": heading, "detail": detail}, status=status)


class FailuresMiddleware:
    """Turns what any view may run into into an answer that says what it was."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return _secured(request, self.get_response(request))

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponseBase | None:
        if isinstance(error, AWAY):
            return _unavailable(request, error)
        if isinstance(error, RecursionError):  # allauth reads JSON with the standard library
            return failure(400, "malformed_json", "The body is nested too deep.")
        if isinstance(error, UnicodeEncodeError) and "surrogates" in error.reason:
            return failure(400, "invalid", HALF_CHARACTER)
        return None


class WithoutTraceback(logging.Filter):
    """A channel layer that is away needs no traceback each second: one line says it."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.startswith("channels_redis") and record.exc_info and record.exc_info[1]:
            record.msg = f"channel layer: {record.exc_info[1]}"
            record.levelno, record.levelname = logging.WARNING, "WARNING"
            record.exc_info = record.exc_text = None
        return True


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """handler400: a Host that is not ours, too many fields, and their like."""
    return answer(request, 400, "bad_request", str(exception) or "The request cannot be read.")


def forbidden(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return answer(request, 403, "forbidden", str(exception or "") or "You may not do this.")


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """handler404; names the address that was probably meant."""
    path = request.path_info
    try:
        resolve(f"{path}/")
    except Resolver404:
        return answer(request, 404, "not_found", NOT_HERE)
    return answer(request, 404, "not_found", f"{NOT_HERE} Meant was probably {path}/ (with a slash at the end).")


def not_upgraded(request: HttpRequest) -> JsonResponse:
    """A plain request where the websocket is: most often a proxy took the upgrade away."""
    asked = "Connect with a websocket: send Upgrade: websocket and Connection: Upgrade, and let proxies pass them on."
    return failure(426, "upgrade_required", asked)


def too_many(request: HttpRequest) -> HttpResponse:
    """handler429, which allauth's limits call."""
    return answer(request, 429, "too_many_requests", "Too many tries: wait a minute and try again.", retryable=True)


def broken(request: HttpRequest) -> HttpResponse:
    """handler500, called while the exception is being handled; the traceback is in the log."""
    if isinstance(error := sys.exc_info()[1], AWAY):
        return _unavailable(request, error)
    return answer(request, 500, "internal", "Something went wrong here; it is in the server's log.", retryable=True)


def csrf(request: HttpRequest, reason: str = "") -> HttpResponse:
    """CSRF_FAILURE_VIEW."""
    cure = "Send the csrftoken cookie's value as X-CSRFToken."
    if wants_page(request):
        cure = "Go back, load the page again and repeat this; the browser must accept cookies."
    return answer(request, 403, "csrf_failed", f"{reason} {cure}".strip())


def wants_page(request: HttpRequest) -> bool:
    """Browsers name text/html when a page is opened; a bare `*/*` is a program."""
    named = "text/html" in request.headers.get("Accept", "")
    return named and not request.path_info.startswith(FOR_PROGRAMS)


def _unavailable(request: HttpRequest, error: Exception) -> HttpResponse:
    logger.error("%s %s: %s: %s", request.method, request.path, type(error).__name__, str(error).strip())
    return logged(answer(request, 503, "unavailable", UNAVAILABLE, retryable=True))


def _secured(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    """Cookies set over https stay on https; over plain http in a LAN they must work too."""
    if request.is_secure():
        for cookie in response.cookies.values():
            cookie["secure"] = True
    return response
