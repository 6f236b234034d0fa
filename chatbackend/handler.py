"""How many http requests are handled at once."""

import asyncio

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.db import close_old_connections
from django.http import HttpRequest, HttpResponseBase

ALWAYS = ("/healthz", "/readyz")  # must answer when nothing else does


class BoundedHandler(ASGIHandler):
    """Django for http; a request waits, read whole, until there is a connection to Postgres for it.

    Django gives every request a thread of its own. A hundred at once would be a hundred threads after sixteen
    connections, and those that come too late would take the pool's time-out for Postgres being away.
    """

    def __init__(self) -> None:
        super().__init__()
        self._room = asyncio.Semaphore(settings.REQUESTS_AT_ONCE)

    async def run_get_response(self, request: HttpRequest) -> HttpResponseBase:
        """What is said; it is sent without a connection, however slowly the client reads."""
        if request.path_info in ALWAYS:
            return await self._said(request)
        async with self._room:
            return await self._said(request)

    async def _said(self, request: HttpRequest) -> HttpResponseBase:
        try:
            response: HttpResponseBase = await super().run_get_response(request)
            return response
        finally:
            # Also when the client has gone: the request's thread goes on with what it does, and first has to be done.
            await asyncio.shield(asyncio.ensure_future(sync_to_async(close_old_connections)()))
