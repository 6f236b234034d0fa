"""Who is at the other end: which proxies are believed, and which pages may open a websocket."""

import ipaddress
import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.http.request import split_domain_port, validate_host

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]

FORWARDED = (b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host", b"x-forwarded-port", b"forwarded")


def behind_proxies(app: App) -> App:
    """Take the client's address and scheme from X-Forwarded-For and -Proto if a TRUSTED_PROXIES sent them.

    From anybody else those headers are dropped: limits by address and secure cookies must not be a client's choice.
    """

    async def wrapped(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] in ("http", "websocket"):
            scope = {**scope, **_seen_from(scope)}
        await app(scope, receive, send)

    return wrapped


def from_own_pages(app: App) -> App:
    """Refuse websockets that a page of another site opened: it would act with the visitor's cookie.

    A missing Origin is fine: no browser leaves it out, and other clients have no cookies of anybody else.
    """

    async def wrapped(scope: Scope, receive: Any, send: Any) -> None:
        refusal = _refusal(_header(scope, b"host"), _header(scope, b"origin"))
        if refusal is None:
            await app(scope, receive, send)
            return
        logger.warning("websocket refused: %s", refusal)
        await deny(send, 403, "origin_refused", refusal)

    return wrapped


async def deny(send: Any, status: int, code: str, detail: str) -> None:
    """Answer a websocket's handshake with an error (ASGI extension `websocket.http.response`)."""
    body = json.dumps({"code": code, "detail": detail, "retryable": False}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})


def _refusal(host: str, origin: str) -> str | None:
    """Why a page of `origin` may not open a socket at `host`; None when it may."""
    domain, _ = split_domain_port(host)
    if not domain or not validate_host(domain, settings.ALLOWED_HOSTS):
        return f"Host {host[:100]!r} is not a name of this site: add it to ALLOWED_HOSTS."
    if not origin or origin in settings.CSRF_TRUSTED_ORIGINS:
        return None
    page = urlsplit(origin)
    if page.scheme in ("http", "https") and _with_port(page.netloc, page.scheme) == _with_port(host, page.scheme):
        return None
    return f"Origin {origin[:100]!r} is not this site, which is at {host[:100]!r}."


def _with_port(netloc: str, scheme: str) -> tuple[str, str]:
    domain, port = split_domain_port(netloc.lower())
    return domain, port or {"http": "80", "https": "443"}[scheme]


def _header(scope: Scope, name: bytes) -> str:
    values = [value for key, value in scope["headers"] if key == name]
    return bytes(values[0]).decode("latin1") if values else ""


def _seen_from(scope: Scope) -> Scope:
    headers = [(name, value) for name, value in scope["headers"] if name not in FORWARDED]
    if not _is_proxy(scope["client"][0] if scope.get("client") else ""):
        return {"headers": headers}
    seen: Scope = {"headers": headers}
    if address := _client(_header(scope, b"x-forwarded-for")):
        seen["client"] = [address, 0]
    if _header(scope, b"x-forwarded-proto") in ("https", "wss"):
        seen["scheme"] = "https" if scope["type"] == "http" else "wss"
    return seen


def _client(forwarded_for: str) -> str:
    """The last address that is no proxy of ours: what comes before it anybody may have written."""
    for word in reversed(forwarded_for.split(",")):
        if _is_address(address := word.strip()) and not _is_proxy(address):
            return address
    return ""


def _is_proxy(address: str) -> bool:
    return _is_address(address) and any(ipaddress.ip_address(address) in net for net in settings.TRUSTED_PROXIES)


def _is_address(word: str) -> bool:
    try:
        ipaddress.ip_address(word)
    except ValueError:
        return False
    return True
