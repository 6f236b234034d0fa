"""Database work for code on the event loop."""

import logging
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from channels.db import database_sync_to_async
from django.db import DatabaseError

from chatbackend.postgresql import AWAY
from conversations import errors

logger = logging.getLogger(__name__)

P = ParamSpec("P")
Result = TypeVar("Result")


def in_thread(function: Callable[P, Result]) -> Callable[P, Awaitable[Result]]:
    """`function` on one of the loop's threads (ASYNC_THREADS in a web process), its connection given back afterwards.

    Channels' default would run everything of the whole process in one thread. Raises Unavailable while Postgres is
    away, Broken for what it refuses.
    """
    threaded = database_sync_to_async(function, thread_sensitive=False)

    async def call(*args: P.args, **kwargs: P.kwargs) -> Result:
        try:
            result: Result = await threaded(*args, **kwargs)
        except AWAY as error:
            raise errors.Unavailable from error
        except DatabaseError as error:
            logger.exception("a statement that Postgres refuses")
            raise errors.Broken from error
        return result

    return call
