"""Steps that must reach Postgres, however long it is away."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import InterfaceError, OperationalError, connection

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

PATIENCE = 600.0  # seconds; then the worker lets go, and whoever comes next goes on from what was stored
AGAIN = 0.5

AWAY = (OperationalError, InterfaceError)


def persist(step: Callable[[], Result]) -> Result:
    """Do `step`, again and again while Postgres is away; raises what the last try raised after PATIENCE.

    `step` must be safe to repeat: a commit whose answer got lost may have happened.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return step()
        except AWAY as error:
            connection.close()
            if time.monotonic() > deadline:
                raise
            logger.warning("storage is away, trying again: %s", error)
            time.sleep(AGAIN)
