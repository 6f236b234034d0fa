"""Every error of the API as `{code, detail, retryable, …}`: the one place where exceptions become answers."""

import logging
from collections.abc import Iterator
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.views import set_rollback

from chatbackend import failures
from chatbackend.postgresql import AWAY
from conversations import errors, frames

logger = logging.getLogger(__name__)

MOST_SAID = 5  # sentences in `detail`; `errors` has all
JSON = "application/json"  # also when the client asked for an event stream

# (exception, code, sentence or None for its own)
KNOWN: list[tuple[type[Exception], str, str | None]] = [
    (exceptions.ParseError, "malformed_json", None),
    (exceptions.AuthenticationFailed, "not_signed_in", "The session token is unknown or has ended: sign in again."),
    (exceptions.NotAuthenticated, "not_signed_in", errors.NotSignedIn.detail),
    (exceptions.MethodNotAllowed, "method_not_allowed", None),
    (
        exceptions.NotAcceptable,
        "not_acceptable",
        "Accept application/json; where an answer is asked for, also text/event-stream.",
    ),
    (exceptions.UnsupportedMediaType, "unsupported_media_type", "Send the body as application/json."),
]


def answer(error: Exception, context: dict[str, Any]) -> Response | None:
    """DRF's EXCEPTION_HANDLER. None for what is nobody's fault but ours: handler500 answers, the log has it."""
    set_rollback()
    if isinstance(error, Http404 | exceptions.NotFound):
        error = errors.NotFound()
    if isinstance(error, AWAY):
        logger.error("%s: %s", type(error).__name__, str(error).strip())
        error = errors.Unavailable()
    if isinstance(error, errors.ChatError):
        headers = {"Retry-After": str(seconds)} if (seconds := error.more.get("retry_after")) else {}
        response = Response(frames.error_body(error), status=error.status, headers=headers, content_type=JSON)
        return failures.logged(response)
    if isinstance(error, exceptions.ValidationError):
        return Response(frames.error_body(invalid(error)), status=400, content_type=JSON)
    if isinstance(error, exceptions.PermissionDenied | PermissionDenied):
        return _forbidden(error)
    if isinstance(error, exceptions.APIException):
        return _known(error)
    return None


def invalid(error: exceptions.ValidationError) -> errors.Invalid:
    """A failed check of fields: `errors` by field, and the first few of them as the sentence."""
    by_field = {field: list(sentences(found)) for field, found in _by_field(_fields(error.detail))}
    said = [f"{_where(field)}{sentence}" for field, found in by_field.items() for sentence in found]
    return errors.Invalid(" ".join(said[:MOST_SAID]), errors=by_field)


def sentences(found: Any) -> Iterator[str]:
    """The sentences of a DRF error detail, however nested."""
    if isinstance(found, dict):
        for inner in found.values():
            yield from sentences(inner)
    elif isinstance(found, list | tuple):
        for inner in found:
            yield from sentences(inner)
    else:
        yield str(found)


def _by_field(detail: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Fields within a field by their path, `params.temperature`; what is wrong with all of it under its own name."""
    for name, found in detail.items():
        field = ".".join(filter(None, (path, name)))
        if isinstance(found, dict):
            yield from _by_field(found, field)
        else:
            yield field, found


def _where(field: str) -> str:
    """What is said of a field within a field names it."""
    return "" if field == "non_field_errors" or "." in field else f"{field}: "


def _fields(detail: Any) -> dict[str, Any]:
    return detail if isinstance(detail, dict) else {"non_field_errors": detail}


def _forbidden(error: Exception) -> Response:
    said = str(getattr(error, "detail", error))
    if said.startswith("CSRF"):
        body = _body("csrf_failed", f"{said} Send the csrftoken cookie's value as X-CSRFToken.")
    else:
        body = _body("forbidden", said or "You may not do this.")
    return Response(body, status=403, content_type=JSON)


def _known(error: exceptions.APIException) -> Response:
    code, sentence = next(((code, said) for kind, code, said in KNOWN if isinstance(error, kind)), ("error", None))
    headers = {"WWW-Authenticate": asked} if (asked := getattr(error, "auth_header", None)) else {}
    body = _body(code, sentence or next(sentences(error.detail), failures.NOT_HERE))
    return Response(body, status=error.status_code, headers=headers, content_type=JSON)


def _body(code: str, detail: str) -> dict[str, Any]:
    return {"code": code, "detail": detail, "retryable": False}
