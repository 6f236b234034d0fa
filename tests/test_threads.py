"""Database work of the event loop runs side by side."""

import asyncio
import threading

import pytest
from django.db import OperationalError, ProgrammingError

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
