"""Database work of the event loop runs side by side, and so many requests."""

import asyncio
import threading

import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.db import OperationalError, ProgrammingError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.test import RequestFactory, override_settings

from chatbackend.handler import BoundedHandler
from conversations import errors
from conversations.threads import in_thread


async def test_calls_do_not_wait_for_one_another() -> None:
    together = threading.Barrier(4)
    await asyncio.gather(*[in_thread(together.wait)(5) for _ in range(4)])


async def test_a_database_that_is_away_is_one_error() -> None:
    def away() -> None:
        raise OperationalError("gone")

    with pytest.raises(errors.Unavailable) as caught:
        await in_thread(away)()
    assert isinstance(caught.value.__cause__, OperationalError)


async def test_what_postgres_refuses_is_a_fault_of_ours_and_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def wrong() -> None:
        raise ProgrammingError("no such column")

    with pytest.raises(errors.Broken) as caught:
        await in_thread(wrong)()
    assert caught.value.body()["code"] == "internal"
    assert "no such column" in caplog.text


async def test_a_request_that_was_given_up_keeps_its_place_until_its_thread_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, done = threading.Event(), threading.Event()
    handled: list[str] = []

    def slow() -> None:
        begun.set()
        done.wait(10)

    async def view(handler: ASGIHandler, request: HttpRequest) -> HttpResponse:
        handled.append(request.path_info)
        if request.path_info == "/slow/":
            await sync_to_async(slow)()
        return HttpResponse()

    monkeypatch.setattr(ASGIHandler, "run_get_response", view)
    with override_settings(REQUESTS_AT_ONCE=1):
        handler = BoundedHandler()

    async def asked(path: str) -> HttpResponseBase:
        async with ThreadSensitiveContext():
            return await handler.run_get_response(RequestFactory().get(path))

    given_up = asyncio.create_task(asked("/slow/"))
    await asyncio.to_thread(begun.wait)
    given_up.cancel()
    waits = asyncio.create_task(asked("/next/"))
    for _ in range(5):
        assert (await asked("/healthz")).status_code == 200
    assert "/next/" not in handled
    done.set()
    assert (await waits).status_code == 200
