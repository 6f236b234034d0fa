"""Database work of the event loop runs side by side."""

import asyncio
import threading

import pytest
from django.db import OperationalError

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
