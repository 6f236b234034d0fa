"""What goes wrong outside the API's own views, in the API's shape `{code, detail, retryable}`, never a bare page."""

import logging
import sys
from collections.abc import Callable
from typing import TypeVar

from django.db import DatabaseError, InterfaceError
from django.http import HttpRequest, HttpResponseBase, JsonResponse
from django.urls import Resolver404, resolve

logger = logging.getLogger(__name__)

# Text that breaks off in the middle of a character: JSON can say it ("\ud800"), UTF-8 and Postgres cannot.
HALF_CHARACTER = "A text has half of a surrogate pair in it, which is no character."
UNAVAILABLE = "The database does not answer at the moment: try again in a few seconds."
Answer = TypeVar("Answer", bound=HttpResponseBase)

NOT_HERE = "There is nothing at this address."


def failure(status: int, code: str, detail: str, retryable: bool = False) -> JsonResponse:
    """The body every error has."""
    return JsonResponse({"code": code, "detail": detail, "retryable": retryable}, status=status)


def logged(response: Answer) -> Answer:
    """A response of 500 or more that needs no further line in the log: Django would call it an error."""
    response._has_been_logged = True  # type: ignore[attr-defined]
    return response


class FailuresMiddleware:
    """Turns what any view may run into into an answer that says what it was."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return _secured(request, self.get_response(request))

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponseBase | None:
        if isinstance(error, DatabaseError | InterfaceError):
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


def bad_request(request: HttpRequest, exception: Exception) -> JsonResponse:
    """handler400: a Host that is not ours, too many fields, and their like."""
    return failure(400, "bad_request", str(exception) or "The request cannot be read.")


def forbidden(request: HttpRequest, exception: Exception | None = None) -> JsonResponse:
    return failure(403, "forbidden", str(exception or "") or "You may not do this.")


def not_found(request: HttpRequest, exception: Exception | None = None) -> JsonResponse:
    """handler404; names the address that was probably meant."""
    path = request.path_info
    try:
        resolve(f"{path}/")
    except Resolver404:
        return failure(404, "not_found", NOT_HERE)
    return failure(404, "not_found", f"{NOT_HERE} Meant was probably {path}/ (with a slash at the end).")


def not_upgraded(request: HttpRequest) -> JsonResponse:
    """A plain request where the websocket is: most often a proxy took the upgrade away."""
    asked = "Connect with a websocket: send Upgrade: websocket and Connection: Upgrade, and let proxies pass them on."
    return failure(426, "upgrade_required", asked)


def broken(request: HttpRequest) -> JsonResponse:
    """handler500, called while the exception is being handled; the traceback is in the log."""
    if isinstance(error := sys.exc_info()[1], DatabaseError | InterfaceError):
        return _unavailable(request, error)
    return failure(500, "internal", "Something went wrong here; it is in the server's log.", retryable=True)


def csrf(request: HttpRequest, reason: str = "") -> JsonResponse:
    """CSRF_FAILURE_VIEW."""
    return failure(403, "csrf_failed", f"{reason} Send the csrftoken cookie's value as X-CSRFToken.".strip())


def _unavailable(request: HttpRequest, error: Exception) -> JsonResponse:
    logger.error("%s %s: %s: %s", request.method, request.path, type(error).__name__, str(error).strip())
    return logged(failure(503, "unavailable", UNAVAILABLE, retryable=True))


def _secured(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    """Cookies set over https stay on https; over plain http in a LAN they must work too."""
    if request.is_secure():
        for cookie in response.cookies.values():
            cookie["secure"] = True
    return response
