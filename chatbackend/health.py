"""Whether this process answers (`/healthz`) and whether people can be served by it (`/readyz`)."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from django.db import connection
from django.http import HttpRequest, JsonResponse
from redis.exceptions import RedisError

from chatbackend.failures import logged
from conversations import errors, events, telling
from conversations.threads import in_thread
from slots import capacity, servers

logger = logging.getLogger(__name__)

WITHIN = 2.0  # seconds for each part

Part = dict[str, str | bool]


async def healthz(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"ok": True})


async def readyz(request: HttpRequest) -> JsonResponse:
    """200 when every part is usable, else 503; each part says in a sentence what is wrong.

    Model servers and workers count only with `?servers=1`: without them, history still reads and sends queue.
    """
    checks = {"database": _state(_database()), "channel_layer": _state(_channel_layer())}
    if request.GET.get("servers") == "1":
        checks |= {"servers": _server_state(), "worker": _state(_worker())}
    states = await asyncio.gather(*checks.values())
    parts = dict(zip(checks, states, strict=True))
    ready = all(part["ok"] for part in states)
    return logged(JsonResponse({"ok": ready, "parts": parts}, status=200 if ready else 503))


async def _state(check: Awaitable[str | None]) -> Part:
    """What `check` complains of; its silence is a complaint too."""
    try:
        async with asyncio.timeout(WITHIN):
            complaint = await check
    except TimeoutError:
        complaint = f"no answer within {WITHIN:g} s"
    return {"ok": complaint is None, "detail": complaint or "usable"}


async def _server_state() -> Part:
    """Usable, and at which grades: what is below full is told in the admin and by `check_servers`."""
    state = await _state(_servers())
    if state["ok"]:
        with contextlib.suppress(errors.Unavailable):  # which `database` says
            grades, out = await in_thread(capacity.grades_in_use)(), await in_thread(capacity.out_of_service)()
            state["detail"] = f"usable: {grades}{f'. {out}' if out else ''}"
    return state


async def _database() -> str | None:
    try:
        await in_thread(_ask_database)()
    except errors.Unavailable as error:
        return f"the database does not answer: {error.__cause__}".strip()
    return None


def _ask_database() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


async def _channel_layer() -> str | None:
    try:
        await events.reach_layer()
    except (RedisError, OSError) as error:
        return f"events are late, because the channel layer does not answer: {error}"
    return None


async def _servers() -> str | None:
    return await _known(servers.why_none)


async def _worker() -> str | None:
    return await _known(telling.no_worker)


async def _known(complaint: Callable[[], str | None]) -> str | None:
    try:
        return await in_thread(complaint)()
    except errors.Unavailable:
        return "not known while the database does not answer"
