"""Database work for code on the event loop."""

from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from channels.db import database_sync_to_async
from django.db import DatabaseError, InterfaceError

from conversations import errors

P = ParamSpec("P")
Result = TypeVar("Result")


def in_thread(function: Callable[P, Result]) -> Callable[P, Awaitable[Result]]:
    """`function` on a thread of the pool (ASGI_THREADS), its connection given back afterwards.

    Channels' default would run everything of the whole process in one thread. Raises Unavailable for whatever
    Postgres raises when it is away.
    """
    threaded = database_sync_to_async(function, thread_sensitive=False)

    async def call(*args: P.args, **kwargs: P.kwargs) -> Result:
        try:
            result: Result = await threaded(*args, **kwargs)
        except (DatabaseError, InterfaceError) as error:
            raise errors.Unavailable from error
        return result

    return call
