"""The ASGI application: Django for http, the chat protocol for the websocket at `/ws/`."""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatbackend.settings")
django.setup(set_prefix=False)

# Only now that Django is set up can these be imported; the addresses, too, so that no first request waits for them.
from channels.routing import ProtocolTypeRouter  # noqa: E402
from channels.sessions import CookieMiddleware  # noqa: E402

import chatbackend.urls  # noqa: E402, F401
from chatbackend.handler import BoundedHandler  # noqa: E402
from chatbackend.origins import Scope, behind_proxies, deny, from_own_pages  # noqa: E402
from conversations.consumer import ChatConsumer  # noqa: E402

socket = from_own_pages(CookieMiddleware(ChatConsumer.as_asgi()))


async def websocket(scope: Scope, receive: object, send: object) -> None:
    if scope["path"] == "/ws/":
        await socket(scope, receive, send)
    else:
        await deny(send, 404, "not_found", "There is nothing at this address; the websocket is at /ws/.")


application = behind_proxies(ProtocolTypeRouter({"http": BoundedHandler(), "websocket": websocket}))
