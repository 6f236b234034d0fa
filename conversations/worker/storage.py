"""Steps that must reach Postgres, however long it is away."""

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import connection

from chatbackend.postgresql import AWAY

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

PATIENCE = 600.0  # seconds; then the worker lets go, and whoever comes next goes on from what was stored
AGAIN = 0.5


def persist(step: Callable[[], Result], given_up: threading.Event | None = None) -> Result:
    """Do `step`, again and again while Postgres is away; raises what the last try raised after PATIENCE.

    The connection goes back to the pool each time: whoever waits for a server must not keep one from the others.
    Once `given_up` is set the next failure is the last. `step` must be safe to repeat: a commit whose answer got lost
    may have happened.
    """
    wait = given_up or threading.Event()
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return step()
        except AWAY as error:
            if wait.is_set() or time.monotonic() > deadline:
                raise
            logger.warning("storage is away, trying again: %s", error)
        finally:
            connection.close()
        wait.wait(AGAIN)
