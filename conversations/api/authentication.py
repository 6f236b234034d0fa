"""Who asks: the session, named by the `X-Session-Token` header or by the cookie."""

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from chatbackend.accounts.models import User
from chatbackend.accounts.sessions import person_of

HEADER = "X-Session-Token"


class SessionToken(BaseAuthentication):
    """The header decides when it is there: a dead token is refused, whatever cookie comes with it."""

    def authenticate(self, request: Request) -> tuple[User, str] | None:
        token = request.headers.get(HEADER)
        if token is None:
            return None
        person = person_of(token)
        if person is None:
            raise AuthenticationFailed
        return person, token

    def authenticate_header(self, request: Request) -> str:
        """With this a refusal is 401, not 403."""
        return HEADER


class SessionCookie(SessionAuthentication):
    """As Django's pages; changes need the CSRF token, because browsers send cookies by themselves."""


class SessionTokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = SessionToken
    name = "sessionToken"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        return {"type": "apiKey", "in": "header", "name": HEADER}


class SessionCookieScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = SessionCookie
    name = "sessionCookie"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        return {"type": "apiKey", "in": "cookie", "name": "sessionid"}
