"""allauth's answers, completed: every error under `/_allauth/` also has `code`, `detail` and `retryable`.

What allauth says (`status`, `errors`, `data.flows`) stays as its clients know it.
"""

import json
from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse

PREFIX = "/_allauth/"

# What allauth answers with a bare status.
MEANINGS = {
    400: ("invalid", "The body must be a JSON object with this request's fields."),
    401: ("not_signed_in", "Sign in first, or send a valid session token."),
    403: ("forbidden", "You may not do this."),
    404: ("not_found", "There is nothing at this address."),
    405: ("method_not_allowed", "This address does not take this method."),
    409: ("conflict", "This does not fit the session: sign out first, or begin the step anew."),
    410: ("session_ended", "This session has ended: sign in again."),
    415: ("unsupported_media_type", "Send JSON."),
    429: ("too_many_requests", "Too many tries: wait a minute and try again."),
}
SIGNUP_CLOSED = ("signup_closed", "Signing up is closed here: ask whoever runs this site for an account.")


class AnswersMiddleware:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        if request.path_info.startswith(PREFIX) and response.status_code in MEANINGS:
            return _completed(request, response)
        return response


def _completed(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    body = _body(response)
    if "code" in body:
        return response
    code, detail = _said(request, response.status_code, body)
    whole = {"code": code, "detail": detail, "retryable": response.status_code == 429, **body}
    if isinstance(response, JsonResponse):
        response.content = json.dumps(whole).encode()
        return response
    return JsonResponse(whole, status=response.status_code)


def _body(response: HttpResponseBase) -> dict[str, Any]:
    if isinstance(response, JsonResponse):
        body = json.loads(response.content)
        return body if isinstance(body, dict) else {}
    # Django's own bare pages, for a body that is no JSON and for a method that is not there.
    assert isinstance(response, HttpResponse)
    return {"status": response.status_code}


def _said(request: HttpRequest, status: int, body: dict[str, Any]) -> tuple[str, str]:
    for error in body.get("errors") or ():
        where = f"{error['param']}: " if "param" in error else ""
        return str(error.get("code", "invalid")), f"{where}{error['message']}"
    if status == 403 and request.path_info.endswith("/signup"):
        return SIGNUP_CLOSED
    return MEANINGS[status]
